//! Decodes records with the rounds of loops: what repeats, byte for byte, is decoded a few times and counted.
//!
//! A program that allocates at full rate does so in a loop, and mostly each round writes the same few bytes.
//!
//! Invariant: with the events that come again, the events are those of decoding record by record.

use memtrack_format::record::{FieldSource, RecordBytes};
use memtrack_format::record_columns::repeatable_blocks;

use super::segment::{Batch, DecodeProgress, SegmentReader, TicketRun};

/// Bytes of a round at most.
const LONGEST: usize = 4096;
/// Bytes that are decoded before it is known whether they mean the same, and again: as many rounds as fit.
const SPAN: usize = if cfg!(test) { 16 } else { 64 };
/// Fewer of them are decoded as they are.
const LEAST_SPANS: usize = if cfg!(test) { 3 } else { 6 };
/// Bytes by which the next round is found.
const HEAD: usize = 16;
/// Places at which these bytes are found that are looked at.
const TRIED: usize = 16;
/// Events that are decoded between two searches, where rounds were found, and where none were for long.
const PAUSES: (usize, usize) = if cfg!(test) { (1, 16) } else { (32, 16 << 10) };

/// Bytes that repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rounds {
    /// Bytes of one.
    length: usize,
    /// Where the last whole one ends.
    end: usize,
}

/// Bytes of the rounds of this length that are decoded together.
const fn span(length: usize) -> usize {
    SPAN.next_multiple_of(length)
}

/// The rounds that begin here.
fn find(bytes: &[u8], at: usize) -> Option<Rounds> {
    let rest = bytes.get(at..)?;
    let head: &[u8; HEAD] = rest.first_chunk()?;
    let starts = rest.get(1..)?.windows(HEAD).take(LONGEST).enumerate();
    let found = starts.filter(|(_, window)| *window == head).map(|(before, _)| before + 1).take(TRIED);
    let rounds = |length: usize| {
        let same = same_from(rest, rest.get(length..).unwrap_or_default());
        let whole = length + same / length * length;
        (whole >= LEAST_SPANS * span(length)).then_some(Rounds { length, end: at + whole })
    };
    found.filter_map(rounds).next()
}

/// How many bytes are the same from the beginning on.
fn same_from(one: &[u8], other: &[u8]) -> usize {
    const CHUNK: usize = 64;
    let chunks = one.chunks_exact(CHUNK).zip(other.chunks_exact(CHUNK));
    let same = chunks.take_while(|(one, other)| one == other).count() * CHUNK;
    let rest = one[same..].iter().zip(&other[same..]);
    same + rest.take_while(|(one, other)| one == other).count()
}

/// How far a piece was decoded.
#[derive(Debug, Default)]
pub(super) struct PiecePlace {
    at: usize,
    /// Events that are decoded before the next search. What was not found in one piece is not searched as often in the next.
    pause: usize,
}

impl PiecePlace {
    /// At the beginning of the next piece of the stream.
    pub(super) fn begin(&mut self) {
        self.at = 0;
    }
}

impl SegmentReader {
    /// Decodes a piece of records, until the batch has about `limit` events or they end.
    pub(super) fn decode_rounds(
        &mut self,
        piece: &[u8],
        place: &mut PiecePlace,
        batch: &mut Batch,
        limit: usize,
    ) -> DecodeProgress {
        while batch.events.len() < limit {
            let found = if self.begin.is_some() && !self.is_timed() { find(piece, place.at) } else { None };
            let passed = match found {
                Some(rounds) => self.rounds(piece, &mut place.at, batch, rounds),
                None => Ok(false),
            };
            match passed {
                Ok(true) => place.pause = PAUSES.0,
                Ok(false) => place.pause = (place.pause * 2).clamp(PAUSES.0, PAUSES.1),
                Err(damaged) => return damaged,
            }
            let events = batch.events.len() + place.pause;
            let mut records = RecordBytes::at(piece, place.at);
            let progress = self.decode(&mut records, batch, events);
            place.at = records.offset();
            if progress != DecodeProgress::Full {
                return progress;
            }
        }
        DecodeProgress::Full
    }

    /// Decodes records up to there.
    fn decode_to(&mut self, piece: &[u8], at: &mut usize, end: usize, batch: &mut Batch) -> Result<(), DecodeProgress> {
        let mut records = RecordBytes::at(piece.get(..end).unwrap_or(piece), *at);
        let progress = self.decode(&mut records, batch, usize::MAX);
        *at = records.offset();
        match progress {
            DecodeProgress::Damaged { left } => Err(DecodeProgress::Damaged { left: left + piece.len() - end }),
            DecodeProgress::End | DecodeProgress::Full => Ok(()),
        }
    }

    /// Decodes a few rounds, and passes over the others but the last; whether it could. An error is of damaged records.
    fn rounds(
        &mut self,
        piece: &[u8],
        at: &mut usize,
        batch: &mut Batch,
        Rounds { length, end }: Rounds,
    ) -> Result<bool, DecodeProgress> {
        let span = span(length);
        let Some(blocks) = piece.get(*at..*at + length).and_then(repeatable_blocks) else { return Ok(false) };
        self.decode_to(piece, at, *at + span, batch)?;
        let before = (self.decoder.image(blocks), self.path.clone());
        let (allocations, first, truncated) = (self.decoder.allocations(), batch.events.len(), batch.truncated);
        self.decode_to(piece, at, *at + span, batch)?;
        let allocations = self.decoder.allocations() - allocations;
        // The last round is decoded, too: what follows may undo its last event.
        let spans = (end - *at - length) / span;
        let is_same = allocations > 0 && spans > 0 && before == (self.decoder.image(blocks), self.path.clone());
        if !is_same || self.decoder.repeat(allocations, spans).is_none() {
            return Ok(false);
        }
        *at += spans * span;
        batch.truncated += (batch.truncated - truncated) * spans as u64;
        self.note_rounds(batch, first, span / length, spans);
        Ok(true)
    }

    /// The events from the `first` one on are of so many rounds, and come so many times more.
    fn note_rounds(&self, batch: &mut Batch, first: usize, rounds: usize, times: usize) {
        let events = batch.events.get(first..).unwrap_or_default();
        let of_round = events.len() / rounds;
        let is_round =
            of_round * rounds == events.len() && events.chunks(of_round.max(1)).all(|one| *one == events[..of_round]);
        let (count, times) = if is_round { (of_round, times * rounds) } else { (events.len(), times) };
        let end = batch.events.len();
        let start = end - count;
        if batch.runs.last().is_none_or(|run| run.start != start) {
            batch.runs.push(TicketRun::new(self.ticket, start));
        }
        if let Some(run) = batch.runs.last_mut() {
            run.again = times as u64;
        }
        batch.runs.push(TicketRun::new(self.ticket, end));
    }
}

#[cfg(test)]
mod tests {
    use super::{Rounds, find, same_from};

    #[test]
    fn rounds_are_found_where_bytes_repeat() {
        let round: Vec<u8> = (0..40).collect();
        let bytes = [&[200, 201][..], &round.repeat(9), &round[..7], &[250; 3]].concat();
        assert_eq!(find(&bytes, 2), Some(Rounds { length: 40, end: 2 + 9 * 40 }));
        assert_eq!(find(&bytes, 5), Some(Rounds { length: 40, end: 5 + 9 * 40 }));
        assert_eq!((find(&bytes, 1), find(&bytes, 300), find(&[7; 15], 0)), (None, None, None));
        assert_eq!(same_from(&[1; 200], &[1; 150]), 150);
    }
}
