//! `mullion why --cases`: many small clusters, a line each, answered in order on all processors.
//!
//! Lines are read in blocks; a block is split among threads and written before the next is read, so memory stays bounded however long
//! the input is. A line that cannot be answered becomes `{"error": ...}`, and the command ends with 2.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, BufWriter, Read, Write},
    path::Path,
    thread,
};

use mullion_engine::Options;
use serde_json::json;

use super::{answer, state::Case};
use crate::failure::Failure;

/// Lines of a block: some megabytes of usual cases.
const LINES: usize = 1024;
/// No case is longer than this.
const MAX_LINE_BYTES: u64 = 256 << 20;

/// Answers every line of a file, or of stdin for `-`.
pub(super) fn run(path: &Path, options: Options) -> Result<(), Failure> {
    let refuse = |error: &io::Error| {
        Failure::input(format!("cases {} cannot be read: {error}", path.display()))
            .hint(r#"a line a case: {"items": [nodes, pods, ...], "pod": {...}}"#)
    };
    let input: Box<dyn Read> = match path.as_os_str() == "-" {
        true => Box::new(io::stdin()),
        false => Box::new(File::open(path).map_err(|error| refuse(&error))?),
    };
    let mut input = BufReader::with_capacity(1 << 20, input);
    let mut output = BufWriter::with_capacity(1 << 20, io::stdout());
    let (mut first, mut wrong) = (1_usize, 0_usize);
    let mut block = Block::default();
    loop {
        block.fill(&mut input).map_err(|error| refuse(&error))?;
        if block.ends.is_empty() {
            break;
        }
        for (text, not_answered) in answers(&block, first, options) {
            wrong += not_answered;
            // Whoever reads may have seen enough.
            if output.write_all(text.as_bytes()).is_err() {
                return Ok(());
            }
        }
        first += block.ends.len();
    }
    if output.flush().is_err() || wrong == 0 {
        return Ok(());
    }
    Err(Failure::input(format!(
        "not answered: {wrong} of {} lines; each says why in its place",
        first - 1
    )))
}

/// Lines in one buffer that is used again.
#[derive(Default)]
struct Block {
    bytes: Vec<u8>,
    /// Where each line ends.
    ends: Vec<usize>,
}

impl Block {
    /// Takes the next lines in; none at the end. Blank lines count and are answered with nothing.
    fn fill(&mut self, input: &mut impl BufRead) -> io::Result<()> {
        self.bytes.clear();
        self.ends.clear();
        while self.ends.len() < LINES {
            let mut limit = input.by_ref().take(MAX_LINE_BYTES);
            if limit.read_until(b'\n', &mut self.bytes)? == 0 {
                break;
            }
            self.ends.push(self.bytes.len());
        }
        Ok(())
    }

    fn line(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..self.ends[index]]
    }
}

/// The answers to a block, in order: the text of each thread's part and how many lines of it are no answers.
fn answers(block: &Block, first: usize, options: Options) -> Vec<(String, usize)> {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let lines = block.ends.len();
    let part = lines.div_ceil(threads).max(1);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..lines)
            .step_by(part)
            .map(|from| {
                scope.spawn(move || {
                    let (mut text, mut wrong) = (String::new(), 0);
                    for index in from..lines.min(from + part) {
                        wrong += usize::from(!answered(
                            block.line(index),
                            first + index,
                            options,
                            &mut text,
                        ));
                    }
                    (text, wrong)
                })
            })
            .collect();
        let joined = workers.into_iter().map(|worker| {
            worker
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        joined.collect()
    })
}

/// Appends the answer to a line; false if the line has none.
fn answered(line: &[u8], number: usize, options: Options, text: &mut String) -> bool {
    if line.trim_ascii().is_empty() {
        return true;
    }
    let answer = answer_to(line, options);
    let is_answer = answer.is_ok();
    text.push_str(
        &answer
            .unwrap_or_else(|why| json!({ "error": format!("line {number}: {why}") }).to_string()),
    );
    text.push('\n');
    is_answer
}

fn answer_to(line: &[u8], options: Options) -> Result<String, String> {
    let mut case = Case::read(line, options).map_err(|error| error.to_string())?;
    // Without priorities evictions are out of the question, and recorded answers do not speak of them.
    let with_preemption = std::iter::once(&case.pod)
        .chain(&case.state.pods)
        .any(|pod| pod.template.priority != 0);
    let cluster = &mut case.state.cluster;
    let asked =
        answer::ask(cluster, &case.pod, with_preemption).map_err(|error| error.to_string())?;
    let name_of = |key: &str| {
        let pod = case.state.pods.iter().find(|pod| pod.key() == key);
        pod.map_or_else(|| key.to_owned(), |pod| pod.name.clone())
    };
    let record = answer::record(&case.state.cluster, &asked, name_of);
    serde_json::to_string(&record).map_err(|error| error.to_string())
}
