//! When a running recording takes pictures of its process's objects.
//!
//! Invariant: the process waits for none but at its end.

use std::sync::atomic::Ordering::Acquire;

use crossbeam_channel::Sender;
use memtrack_format::meta::Process;
use memtrack_format::objects::PictureCause;
use memtrack_transport::layout::image;

use super::Session;
use crate::sink::sink_queue::SinkQueue;

impl Session {
    /// Passes pictures on that were read, and orders the next one if it is due.
    pub(super) fn picture(&mut self, now: u64, queue: &SinkQueue) {
        self.pictures.round(|| self.observer.tick(&self.area), queue);
        if self.area.control().image.load(Acquire) == image::IN_EXEC {
            return;
        }
        let resident = self.observer.last_rss();
        if let Some(cause) = self.pictures.due(now, resident) {
            // The process waits, so that its moment is now.
            let waits = cause == PictureCause::End || self.pictures.is_ending();
            let tick = waits.then(|| self.observer.tick(&self.area));
            self.dirty = true;
            self.pictures.order(cause, tick, resident);
        }
    }

    /// The recording is about to end while the process runs on.
    pub(crate) fn picture_of_end(&mut self, answer: Sender<()>) {
        self.pictures.end_of_recording(self.observer.last_rss(), answer);
        self.dirty = true;
    }

    /// Waits for what is outstanding.
    pub(super) fn last_picture(&mut self, queue: &SinkQueue) {
        self.pictures.end(|| self.observer.tick(&self.area), queue);
        if let Some(missing) = self.pictures.missing() {
            self.update_process(Process { objects_note: Some(missing.into_bytes()), ..Process::default() }, queue);
        }
    }
}
