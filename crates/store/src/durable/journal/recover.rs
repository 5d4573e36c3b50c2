//! Reads what a process that did not shut down cleanly has left in the journal.

use super::{
    Part,
    entries::{Entries, damaged},
    segment::Segment,
};
use crate::durable::{directory::Directory, error::StoreError};

/// One of the two files, as found at start.
struct JournalFile {
    segment: Segment,
    /// Up to which number the file says that entries were acknowledged.
    marked: u64,
    /// The numbers of the first and the last entry that can be read.
    numbers: Option<(u64, u64)>,
}

/// Returns the entries behind the number `folded`, the oldest first.
///
/// # Errors
/// A file is missing, or anything in it is not what was written, or an entry that was acknowledged is not there.
pub(in crate::durable) fn recover(
    directory: &Directory,
    identity: u64,
    folded: u64,
) -> Result<Vec<Part>, StoreError> {
    let found = [find(directory, identity, 0)?, find(directory, identity, 1)?];
    let lasts = found.iter().filter_map(|found| found.numbers);
    // The last entry of both files: what follows the older file's entries is judged by it too.
    let last = lasts.map(|(_, last)| last).fold(folded, u64::max);
    for found in &found {
        let mut entries = Entries::of(&found.segment, identity)?;
        while entries.next()?.is_some() {}
        // Checked before anything is folded, so that a damaged journal changes nothing.
        entries.check_rest(last)?;
    }
    check_order(&found, folded)?;
    if let Some(found) = found.iter().find(|found| found.marked > last) {
        let why = format!(
            "it says that entry {} was acknowledged, and the journal ends with entry {last}",
            found.marked
        );
        return Err(damaged(&found.segment.path, &why));
    }
    let mut parts: Vec<Part> = found
        .into_iter()
        .filter_map(|found| {
            let (first, last) = found.numbers.filter(|(_, last)| *last > folded)?;
            Some(Part {
                segment: found.segment,
                identity,
                numbers: first.max(folded + 1)..=last,
            })
        })
        .collect();
    parts.sort_by_key(Part::last);
    Ok(parts)
}

fn find(directory: &Directory, identity: u64, index: usize) -> Result<JournalFile, StoreError> {
    let (backend, path) = directory.open_journal(index)?;
    let segment = Segment::found(backend, path);
    let mut entries = Entries::of(&segment, identity)?;
    let marked = entries.mark()?;
    let mut numbers: Option<(u64, u64)> = None;
    while let Some((number, _)) = entries.next()? {
        numbers = Some((numbers.map_or(number, |(first, _)| first), number));
    }
    drop(entries);
    Ok(JournalFile {
        segment,
        marked,
        numbers,
    })
}

/// Checks that no entry is missing between those that are folded and the last one.
fn check_order(found: &[JournalFile; 2], folded: u64) -> Result<(), StoreError> {
    let mut order = [(&found[0], &found[1]), (&found[1], &found[0])];
    order.sort_by_key(|(found, _)| found.numbers);
    let mut next = folded + 1;
    for (here, other) in order {
        let Some((first, last)) = here.numbers.filter(|(_, last)| *last > folded) else {
            continue;
        };
        if first > next {
            // This file begins with `first`, so what came before it was in the other one.
            let why = format!("entry {next} is missing, and entry {first} is there");
            return Err(damaged(&other.segment.path, &why));
        }
        next = last + 1;
    }
    Ok(())
}
