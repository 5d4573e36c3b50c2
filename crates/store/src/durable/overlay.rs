//! A file whose writes stay in memory, so that an operation that would change the file can be tried without changing
//! it.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    io,
    sync::{Mutex, MutexGuard, PoisonError},
};

use redb::StorageBackend;

use super::backend::Backend;

const PAGE: usize = 4096;

/// A file as it would be after the writes that were kept in memory.
#[derive(Debug)]
pub(super) struct Overlay {
    below: Backend,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    len: u64,
    /// The number of bytes of the file below that are still visible where no page lies over them. Cutting the file off
    /// hides the rest for good.
    shown: u64,
    pages: BTreeMap<u64, Box<[u8; PAGE]>>,
}

impl Overlay {
    pub(super) fn over(below: Backend) -> io::Result<Self> {
        let len = below.len()?;
        let state = Mutex::new(State {
            len,
            shown: len,
            pages: BTreeMap::new(),
        });
        Ok(Overlay { below, state })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads from the file below, zeros where it does not show through.
    fn read_below(&self, shown: u64, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let there = shown.saturating_sub(offset).min(out.len() as u64) as usize;
        let (there, rest) = out.split_at_mut(there);
        rest.fill(0);
        if there.is_empty() {
            Ok(())
        } else {
            self.below.read(offset, there)
        }
    }
}

/// Splits a range of bytes by pages: for each page its number, where the bytes begin in it, and how
/// many there are.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset + len as u64;
    let mut at = offset;
    std::iter::from_fn(move || {
        let (page, from) = (at / PAGE as u64, (at % PAGE as u64) as usize);
        let count = (end - at).min((PAGE - from) as u64) as usize;
        at += count as u64;
        (count > 0).then_some((page, from, count))
    })
}

impl StorageBackend for Overlay {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.state();
        if offset + out.len() as u64 > state.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.read_below(state.shown, offset, out)?;
        let mut rest = out;
        for (page, from, count) in parts(offset, rest.len()) {
            let (here, behind) = rest.split_at_mut(count);
            if let Some(written) = state.pages.get(&page) {
                here.copy_from_slice(&written[from..from + count]);
            }
            rest = behind;
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state();
        state.len = len;
        state.shown = state.shown.min(len);
        // What is cut off is gone, also when the file grows again.
        state.pages.split_off(&len.div_ceil(PAGE as u64));
        if let Some(last) = state.pages.get_mut(&(len / PAGE as u64)) {
            last[(len % PAGE as u64) as usize..].fill(0);
        }
        Ok(())
    }

    // Nothing of an overlay has to survive, so there is nothing to write out.
    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        let shown = state.shown;
        let mut rest = data;
        for (page, from, count) in parts(offset, data.len()) {
            let (here, behind) = rest.split_at(count);
            let written = match state.pages.entry(page) {
                Entry::Occupied(there) => there.into_mut(),
                Entry::Vacant(place) => {
                    let mut under = Box::new([0; PAGE]);
                    self.read_below(shown, page * PAGE as u64, &mut under[..])?;
                    place.insert(under)
                }
            };
            written[from..from + count].copy_from_slice(here);
            rest = behind;
        }
        state.len = state.len.max(offset + data.len() as u64);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use redb::backends::InMemoryBackend;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, Vec<u8>),
        Cut(u64),
    }

    fn a_step() -> impl Strategy<Value = Step> {
        let bytes = proptest::collection::vec(1..=255u8, 1..6000);
        prop_oneof![
            3 => (0..20_000u64, bytes).prop_map(|(at, bytes)| Step::Write(at, bytes)),
            1 => (0..24_000u64).prop_map(Step::Cut),
        ]
    }

    proptest! {
        #[test]
        fn an_overlay_reads_as_the_file_would_and_leaves_it_alone(steps in proptest::collection::vec(a_step(), 0..12)) {
            let file = Arc::new(InMemoryBackend::new());
            let first: Vec<u8> = (0..10_000).map(|at| (at % 251) as u8).collect();
            file.set_len(10_000).unwrap();
            file.write(0, &first).unwrap();
            let overlay = Overlay::over(Backend::new(file.clone())).unwrap();
            let mut model = first.clone();
            for step in &steps {
                match step {
                    Step::Write(at, bytes) => {
                        let (at, end) = (*at as usize, *at as usize + bytes.len());
                        model.resize(model.len().max(end), 0);
                        model[at..end].copy_from_slice(bytes);
                        overlay.write(at as u64, bytes).unwrap();
                    }
                    Step::Cut(len) => {
                        model.resize(*len as usize, 0);
                        overlay.set_len(*len).unwrap();
                    }
                }
            }
            let mut read = vec![1; model.len()];
            overlay.read(0, &mut read).unwrap();
            prop_assert!(read == model);
            prop_assert!(overlay.read(1, &mut read).is_err());
            let mut below = vec![0; 10_000];
            file.read(0, &mut below).unwrap();
            prop_assert!(below == first);
        }
    }
}
