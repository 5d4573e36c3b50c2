//! Answers cases, which are questions of one line each, in order and on all processors.
//!
//! One thread reads blocks of lines, a worker per processor answers them, and another thread writes them in order. Written blocks are used
//! again, so memory stays bounded for any input, and no worker waits for a round of the others. A line without an answer becomes `{"error":
//! ...}`, and the command ends with 2.

use std::{
    any::Any,
    collections::BTreeMap,
    fmt::Display,
    fs::File,
    io::{self, BufRead, BufReader, Read, Write},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::Path,
    sync::{
        Mutex, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

use serde_json::json;

use crate::{
    failure::{Failure, file_error},
    input,
};

/// A block ends with the line that reaches this size, which fits into a processor's cache.
const BLOCK_BYTES: usize = 256 << 10;
/// The number of blocks for each worker.
const BLOCKS: usize = 4;
/// The longest line, in bytes.
const MAX_LINE_BYTES: u64 = 256 << 20;

/// Returns the text of an error about a line that is read as JSON. The line is one of a file, so the parser's own line number, which is
/// always 1, is left out.
pub(crate) fn syntax_error(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.replace(" at line 1 column ", " at column ")
}

/// The value with which a worker panicked.
type Panic = Box<dyn Any + Send>;

/// Answers every line of a file, or of stdin for `-`. `form` shows the form of a line in the error about a file that cannot be read.
/// `worker` returns a function that answers the lines of one processor: it appends the answer to a text, or returns an error.
///
/// # Errors
/// The file cannot be read, or a line was not answered.
pub(crate) fn answer_all<W, E>(
    path: &Path,
    form: &'static str,
    worker: impl Fn() -> W + Sync,
) -> Result<(), Failure>
where
    W: FnMut(&[u8], &mut Vec<u8>) -> Result<(), E>,
    E: Display,
{
    let refuse = |error: &io::Error| {
        let why = file_error(error);
        Failure::input(format!(
            "cases {} cannot be read: {why}",
            input::named(path)
        ))
        .hint(form)
    };
    let input: Box<dyn Read> = if input::is_stdin(path) {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(path).map_err(|error| refuse(&error))?)
    };
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let ends = pass_through(input, io::stdout(), workers, &worker);
    let (cases, wrong) = ends.map_err(|error| refuse(&error))?;
    if wrong == 0 {
        return Ok(());
    }
    Err(Failure::input(format!(
        "not answered: {wrong} of {cases} cases; each says why in its place"
    )))
}

/// Reads, answers and writes lines. Returns the number of cases and the number of those without an answer. If the reader closes the output,
/// it ends without an error.
pub(crate) fn pass_through<W, E>(
    input: impl Read,
    output: impl Write + Send,
    workers: usize,
    worker: &(impl Fn() -> W + Sync),
) -> io::Result<(usize, usize)>
where
    W: FnMut(&[u8], &mut Vec<u8>) -> Result<(), E>,
    E: Display,
{
    let mut input = BufReader::with_capacity(BLOCK_BYTES, input);
    let (idle, free) = channel();
    let (work, waiting) = channel();
    let (done, answered) = channel();
    for _ in 0..BLOCKS * workers {
        // The receiver exists, so sending cannot fail.
        let _ = idle.send(Block::default());
    }
    let waiting = Mutex::new(waiting);
    thread::scope(|scope| {
        for _ in 0..workers {
            // Each worker has its own cache of questions.
            let (waiting, done) = (&waiting, done.clone());
            scope.spawn(move || answer_blocks(waiting, &done, worker()));
        }
        drop(done);
        let writer = scope.spawn(move || write_in_order(&answered, &idle, output));
        let read = read_blocks(&mut input, &free, &work);
        drop((work, free));
        let written = writer.join().unwrap_or_else(|panic| resume_unwind(panic));
        let written = written.unwrap_or_else(|panic| resume_unwind(panic));
        read.map(|()| written)
    })
}

/// Reads blocks until the input ends or no block is needed any more.
fn read_blocks(
    input: &mut BufReader<impl Read>,
    free: &Receiver<Block>,
    work: &Sender<Block>,
) -> io::Result<()> {
    let (mut number, mut lines) = (0, 0);
    while let Ok(mut block) = free.recv() {
        (block.number, block.first) = (number, lines + 1);
        block.fill(input)?;
        if block.ends.is_empty() {
            break;
        }
        lines += block.ends.len();
        number += 1;
        if work.send(block).is_err() {
            break;
        }
    }
    Ok(())
}

/// Answers blocks until there are no more; runs in each worker.
fn answer_blocks<E: Display>(
    waiting: &Mutex<Receiver<Block>>,
    done: &Sender<Result<Block, Panic>>,
    mut answer: impl FnMut(&[u8], &mut Vec<u8>) -> Result<(), E>,
) {
    loop {
        let next = waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .recv();
        let Ok(mut block) = next else { return };
        // A panic is caught, because a worker that just ended would leave the others waiting.
        let whole = catch_unwind(AssertUnwindSafe(|| block.answer(&mut answer)));
        if done.send(whole.map(|()| block)).is_err() {
            return;
        }
    }
}

/// Writes blocks in the order of their numbers and makes them available again. Returns the number of cases and the number of those without
/// an answer.
fn write_in_order(
    answered: &Receiver<Result<Block, Panic>>,
    idle: &Sender<Block>,
    mut output: impl Write,
) -> Result<(usize, usize), Panic> {
    let mut early = BTreeMap::new();
    let (mut next, mut cases, mut wrong) = (0, 0, 0);
    while let Ok(block) = answered.recv() {
        let block = block?;
        early.insert(block.number, block);
        while let Some(block) = early.remove(&next) {
            next += 1;
            cases += block.cases;
            wrong += block.wrong;
            if output.write_all(&block.text).is_err() {
                return Ok((cases, 0));
            }
            // The receiver is gone once the input has ended.
            let _ = idle.send(block);
        }
    }
    match output.flush() {
        Ok(()) => Ok((cases, wrong)),
        Err(_) => Ok((cases, 0)),
    }
}

/// Lines in one reusable buffer, and their answers.
#[derive(Default)]
struct Block {
    /// The position in the input.
    number: usize,
    /// The number of its first line.
    first: usize,
    bytes: Vec<u8>,
    /// The end of each line.
    ends: Vec<usize>,
    text: Vec<u8>,
    /// The number of lines that are not blank, and the number of those without an answer.
    cases: usize,
    wrong: usize,
}

impl Block {
    /// Reads the next lines, as many as are available without waiting; none at the end of the input. Blank lines get an empty answer.
    fn fill(&mut self, input: &mut BufReader<impl Read>) -> io::Result<()> {
        self.bytes.clear();
        self.ends.clear();
        while self.ends.is_empty() || (self.bytes.len() < BLOCK_BYTES && !input.buffer().is_empty())
        {
            if input
                .take(MAX_LINE_BYTES)
                .read_until(b'\n', &mut self.bytes)?
                == 0
            {
                break;
            }
            self.ends.push(self.bytes.len());
        }
        Ok(())
    }

    fn answer<E: Display>(
        &mut self,
        answer: &mut impl FnMut(&[u8], &mut Vec<u8>) -> Result<(), E>,
    ) {
        self.text.clear();
        (self.cases, self.wrong) = (0, 0);
        let mut start = 0;
        for (index, end) in self.ends.iter().enumerate() {
            let line = &self.bytes[start..*end];
            start = *end;
            let line = line.trim_ascii();
            if line.is_empty() {
                continue;
            }
            self.cases += 1;
            let before = self.text.len();
            if let Err(why) = answer(line, &mut self.text) {
                self.wrong += 1;
                self.text.truncate(before);
                let error = json!({ "error": format!("line {}: {why}", self.first + index) });
                self.text.extend_from_slice(error.to_string().as_bytes());
            }
            self.text.push(b'\n');
        }
    }
}
