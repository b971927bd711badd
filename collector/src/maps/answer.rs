//! Answers the pending questions of a process about pages of code, all from one reading of its maps.
//!
//! Invariant: a question is answered from a reading that was made while it was pending, or from an earlier one if
//! nothing has been mapped or unmapped since.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use memtrack_format::mapped::MappedFile;
use memtrack_transport::Area;
use memtrack_transport::layout::{PAGE, Question, image, state};
use rustc_hash::FxHashMap;

use super::elf::ElfSegments;
use super::open::{OpenedFile, find};
use super::parse::{FileMapping, Maps, parse};
use super::read;
use crate::system::process_handle::ProcessHandle;

/// Maximum length of a path; of a longer one the end is kept.
const LONGEST_PATH: usize = 4096;

/// The answer to all pending questions.
#[derive(Debug, Default)]
pub(super) struct MapsAnswer {
    /// Mapped files, with the ids of their pages.
    pub(super) files: Vec<MappedFile>,
    /// Why questions could not be answered, for the user.
    pub(super) error_text: Option<String>,
}

/// Answers the questions of one process image.
pub(super) struct Answerer {
    pid: i32,
    area: Arc<Area>,
    handle: Arc<ProcessHandle>,
    /// Device and inode number of the shared memory's file, which maps of this image must contain.
    memory: Option<((u32, u32), u64)>,
    latest: Option<MapsReading>,
}

/// A reading of the maps.
struct MapsReading {
    maps: Maps,
    /// [`memtrack_transport::layout::ControlPage::map_changes`] before the reading.
    map_changes: u32,
    /// The files that were opened since.
    files: FxHashMap<u64, MappingFile>,
}

/// The file of a mapping.
#[derive(Clone, Debug)]
struct MappingFile {
    path: Vec<u8>,
    elf: Option<ElfSegments>,
}

/// A pending question.
struct PendingQuestion<'a> {
    question: &'a Question,
    code: u32,
    page: u64,
}

impl Answerer {
    pub(super) fn new(pid: i32, area: Arc<Area>, handle: Arc<ProcessHandle>) -> Self {
        Self { pid, area, handle, memory: None, latest: None }
    }

    /// Reads the maps, and answers the pending questions.
    pub(super) fn read_maps(&mut self) -> MapsAnswer {
        let pid = self.pid;
        self.read_with(|| read(pid))
    }

    fn read_with(&mut self, read: impl FnOnce() -> io::Result<Vec<u8>>) -> MapsAnswer {
        let area = Arc::clone(&self.area);
        let asked = standing(&area);
        let map_changes = area.control().map_changes.load(SeqCst);
        let text = read();
        let mut error_text = None;
        match text.as_deref().map(parse) {
            Ok(maps) if self.is_of_image(&maps) => {
                self.latest = Some(MapsReading { maps, map_changes, files: FxHashMap::default() });
            }
            Err(error) if !self.is_over(error) => {
                self.latest = None;
                error_text = (!asked.is_empty()).then(|| self.error_text(error));
            }
            // The image is gone. The last reading still holds, if nothing was mapped or unmapped. What the C library unmaps
            // itself is not counted; but what the program then has at that place, it has mapped.
            _ => {
                let map_changes = area.control().map_changes.load(SeqCst);
                drop(self.latest.take_if(|latest| latest.map_changes != map_changes));
            }
        }
        // A question may have been withdrawn meanwhile, and its slot reused.
        let asked: Vec<_> = asked.iter().filter_map(PendingQuestion::take).collect();
        MapsAnswer { files: self.files(&asked), error_text }
    }

    /// Whether these are maps of the image that is recorded: it has the shared memory.
    fn is_of_image(&mut self, maps: &Maps) -> bool {
        let control = self.area.control();
        if maps.files.is_empty() || control.image.load(SeqCst) == image::IN_EXEC {
            return false;
        }
        if control.state.load(Acquire) == state::READY {
            return true; // It waits for the memory, and has asked nothing.
        }
        if self.memory.is_none() {
            let here = read(std::process::id().cast_signed()).map(|text| parse(&text)).unwrap_or_default();
            let ours = here.at(std::ptr::from_ref(control).addr() as u64);
            self.memory = ours.map(|mapping| (mapping.device, mapping.inode));
        }
        self.memory.is_some_and(|memory| maps.files.iter().any(|file| (file.device, file.inode) == memory))
    }

    fn is_over(&self, error: &io::Error) -> bool {
        let is_gone = error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH);
        is_gone || self.handle.has_ended() || self.area.control().image.load(SeqCst) == image::IN_EXEC
    }

    fn error_text(&self, error: &io::Error) -> String {
        let pid = self.pid;
        format!(
            "process {pid}: cannot read its memory maps ({error}), so code outside its loaded libraries has no names"
        )
    }

    /// The files of these pages, by id and address.
    fn files(&mut self, asked: &[(u32, u64)]) -> Vec<MappedFile> {
        let mut files: Vec<MappedFile> = Vec::new();
        let Some(latest) = &mut self.latest else { return files };
        for &(code, page) in asked {
            let Some(mapping) = latest.maps.at(page).filter(|mapping| mapping.executable) else { continue };
            let known = latest.files.entry(mapping.start).or_insert_with(|| MappingFile::of(self.pid, mapping));
            let mapped = known.mapped(mapping, page);
            let same = |file: &&mut MappedFile| (file.start, file.bias) == (mapped.start, mapped.bias);
            match files.iter_mut().find(same) {
                Some(file) => file.codes.push(code),
                None => files.push(MappedFile { codes: vec![code], ..mapped }),
            }
        }
        files
    }
}

impl MappingFile {
    fn of(pid: i32, mapping: &FileMapping) -> Self {
        let OpenedFile { path, file } = find(pid, mapping);
        Self { path, elf: file.and_then(|file| ElfSegments::read(&file)) }
    }

    /// The mapped file of this page. If the file does not have the addresses for which it was linked, offsets in it are
    /// used instead, and no build-id, since addresses would not match a file with it.
    fn mapped(&self, mapping: &FileMapping, page: u64) -> MappedFile {
        let bias = self.elf.as_ref().and_then(|elf| elf.bias(mapping, page, PAGE as u64));
        let build_id = self.elf.as_ref().filter(|_| bias.is_some()).map(|elf| elf.build_id.clone());
        let path = self.path.get(self.path.len().saturating_sub(LONGEST_PATH)..).unwrap_or_default();
        MappedFile {
            codes: Vec::new(),
            bias: bias.unwrap_or_else(|| mapping.start.wrapping_sub(mapping.offset)),
            start: mapping.start,
            end: mapping.end,
            path: path.to_vec(),
            build_id: build_id.unwrap_or_default(),
        }
    }
}

/// The pending questions.
fn standing(area: &Area) -> Vec<PendingQuestion<'_>> {
    let asked = area.control().questions.iter().filter_map(|question| {
        let code = question.code.load(Acquire);
        let page = question.page.load(Relaxed);
        (code != 0 && code != Question::CLAIMED).then_some(PendingQuestion { question, code, page })
    });
    asked.collect()
}

impl PendingQuestion<'_> {
    /// Removes the question, so that there is room for another; `None`: it was withdrawn.
    fn take(&self) -> Option<(u32, u64)> {
        let taken = self.question.code.compare_exchange(self.code, 0, SeqCst, Relaxed);
        taken.is_ok().then_some((self.code, self.page))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io;
    use std::os::fd::AsRawFd;
    use std::sync::Arc;
    use std::sync::atomic::Ordering::SeqCst;

    use memtrack_format::mapped::MappedFile;
    use memtrack_transport::Area;
    use memtrack_transport::layout::{Question, image, state};
    use tempfile::TempDir;

    use super::{Answerer, read};
    use crate::system::process_handle::ProcessHandle;

    const LENGTH: usize = 8192;

    /// This process as one that is recorded, with a file that it has mapped to run.
    struct MappedProcess {
        dir: TempDir,
        area: Arc<Area>,
        answerer: Answerer,
        code: *mut libc::c_void,
    }

    impl MappedProcess {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("code");
            fs::write(&path, [0; LENGTH]).unwrap();
            let file = File::open(path).unwrap();
            let (null, protection) = (std::ptr::null_mut(), libc::PROT_READ | libc::PROT_EXEC);
            // SAFETY: a new mapping at an address of the system's choice touches nothing that exists.
            let code = unsafe { libc::mmap(null, LENGTH, protection, libc::MAP_PRIVATE, file.as_raw_fd(), 0) };
            assert_ne!(code, libc::MAP_FAILED);
            let area = Arc::new(Area::create(8, dir.path()).unwrap().0);
            area.control().state.store(state::RECORDING, SeqCst);
            let pid = std::process::id().cast_signed();
            let answerer = Answerer::new(pid, Arc::clone(&area), Arc::new(ProcessHandle::of(pid)));
            Self { dir, area, answerer, code }
        }

        fn question(&self, place: usize) -> &Question {
            &self.area.control().questions[place]
        }

        /// Asks for the page with this number.
        fn ask(&self, place: usize, code: u32, page: usize) {
            self.question(place).page.store((self.code.addr() + page * 4096) as u64, SeqCst);
            self.question(place).code.store(code, SeqCst);
        }

        /// As if it had ended.
        fn end(&mut self) {
            let mut child = std::process::Command::new("true").spawn().unwrap();
            let handle = ProcessHandle::of(child.id().cast_signed());
            child.wait().unwrap();
            self.answerer.handle = Arc::new(handle);
        }

        /// The answer if reading fails.
        fn refused(&mut self, error: i32) -> (Vec<MappedFile>, Option<String>) {
            let answer = self.answerer.read_with(|| Err(io::Error::from_raw_os_error(error)));
            (answer.files, answer.error_text)
        }
    }

    impl Drop for MappedProcess {
        fn drop(&mut self) {
            // SAFETY: mapped by `new`, and referred to by number only.
            unsafe { libc::munmap(self.code, LENGTH) };
        }
    }

    #[test]
    fn pages_of_files_are_told_and_others_taken_out() {
        let mut process = MappedProcess::new();
        process.ask(0, 7, 0);
        process.ask(3, 8, 1);
        process.ask(5, 9, usize::MAX >> 20);
        process.question(6).code.store(Question::CLAIMED, SeqCst);
        let answer = process.answerer.read_maps();
        let start = process.code.addr() as u64;
        let path = process.dir.path().join("code").into_os_string().into_encoded_bytes();
        let file = MappedFile { codes: vec![7, 8], bias: start, start, end: start + 8192, path, build_id: vec![] };
        assert_eq!((answer.files, answer.error_text), (vec![file], None));
        let left: Vec<_> = [0, 3, 5, 6].map(|place| process.question(place).code.load(SeqCst)).to_vec();
        assert_eq!(left, [0, 0, 0, Question::CLAIMED]);
    }

    #[test]
    fn a_question_that_is_taken_back_while_maps_are_read_is_not_answered() {
        let mut process = MappedProcess::new();
        process.ask(0, 7, 0);
        process.ask(1, 8, 0);
        let area = Arc::clone(&process.area);
        let pid = process.answerer.pid;
        let answer = process.answerer.read_with(|| {
            let text = read(pid);
            // The place has another question by now.
            area.control().questions[0].code.store(9, SeqCst);
            text
        });
        assert_eq!(answer.files[0].codes, [8]);
        assert_eq!(process.question(0).code.load(SeqCst), 9);
    }

    #[test]
    fn what_was_there_holds_for_a_process_that_has_ended_if_no_mapping_changed() {
        for changes in [0, 1] {
            let mut process = MappedProcess::new();
            assert!(process.answerer.read_maps().files.is_empty());
            process.end();
            process.ask(0, 7, 0);
            process.area.control().map_changes.fetch_add(changes, SeqCst);
            let answer = process.answerer.read_with(|| Ok(Vec::new()));
            assert_eq!((answer.files.len(), answer.error_text), (1 - changes as usize, None));
        }
        let mut process = MappedProcess::new();
        process.answerer.read_maps();
        process.ask(0, 7, 0);
        assert_eq!(process.refused(libc::ESRCH).0.len(), 1);
    }

    #[test]
    fn maps_of_another_program_are_not_looked_at() {
        let mut process = MappedProcess::new();
        process.ask(0, 7, 0);
        process.area.control().image.store(image::IN_EXEC, SeqCst);
        assert!(process.answerer.read_maps().files.is_empty());
        let mut process = MappedProcess::new();
        process.ask(0, 7, 0);
        let page = process.code.addr();
        let other = format!("{page:x}-{:x} r-xp 00000000 00:01 1 /other\n", page + LENGTH);
        assert!(process.answerer.read_with(|| Ok(other.into_bytes())).files.is_empty());
    }

    #[test]
    fn maps_that_may_not_be_read_are_an_error_if_something_was_asked() {
        let mut process = MappedProcess::new();
        assert_eq!(process.refused(libc::EACCES), (vec![], None));
        process.ask(0, 7, 0);
        let (files, error_text) = process.refused(libc::EACCES);
        assert!(files.is_empty() && error_text.is_some_and(|text| text.contains("Permission denied")));
        assert_eq!(process.question(0).code.load(SeqCst), 0);
        process.end();
        process.ask(0, 7, 0);
        assert_eq!(process.refused(libc::EACCES), (vec![], None));
    }
}
