//! Programs that tests run beside the cluster: how they end, and what they say while they run. Nothing here waits for ever.

use std::{
    io::{BufRead, BufReader, Read, Write},
    process::{Child, Command, Output, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use crate::cluster::PATIENCE;

/// Runs a program with this on its stdin until it ends, by itself or because it takes longer than `patience`.
pub(crate) fn ended(command: &mut Command, stdin: &str, patience: Duration) -> Output {
    let mut child = spawned(command.stdin(Stdio::piped()));
    let mut input = child.stdin.take().expect("stdin is piped");
    let stdin = stdin.to_owned();
    // It may end without having read all of it.
    thread::spawn(move || drop(input.write_all(stdin.as_bytes())));
    let (speaks, silent) = mpsc::channel::<()>();
    let stdout = read_all(child.stdout.take(), speaks.clone());
    let stderr = read_all(child.stderr.take(), speaks);
    if silent.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
        // It may end at this very moment.
        let _ = child.kill();
    }
    Output {
        status: child.wait().expect("a child can be waited for"),
        stdout: stdout.join().expect("reading does not panic"),
        stderr: stderr.join().expect("reading does not panic"),
    }
}

fn spawned(command: &mut Command) -> Child {
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?} cannot be run: {error}"))
}

fn read_all(
    from: Option<impl Read + Send + 'static>,
    speaks: mpsc::Sender<()>,
) -> thread::JoinHandle<Vec<u8>> {
    let mut from = from.expect("it is piped");
    thread::spawn(move || {
        let mut all = Vec::new();
        // What was said before an error is what there is.
        let _ = from.read_to_end(&mut all);
        drop(speaks);
        all
    })
}

/// What is said, line by line, until there is no more of it.
pub(crate) fn lines(from: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    lines
}

/// Lines up to the first that `wanted` takes, with that one last; all that came in time where there is none.
pub(crate) fn heard(
    lines: &Receiver<String>,
    wanted: impl Fn(&str) -> bool,
) -> Result<Vec<String>, Vec<String>> {
    let deadline = Instant::now() + PATIENCE;
    let mut heard = Vec::new();
    while let Ok(line) = lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        heard.push(line);
        if heard.last().is_some_and(|line| wanted(line)) {
            return Ok(heard);
        }
    }
    Err(heard)
}

/// A program that runs until this is dropped.
pub(crate) struct Running {
    child: Child,
    shown: String,
    stdout: Receiver<String>,
    stderr: Receiver<String>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = spawned(command.stdin(Stdio::null()));
        Running {
            stdout: lines(child.stdout.take().expect("stdout is piped")),
            stderr: lines(child.stderr.take().expect("stderr is piped")),
            shown: format!("{command:?}"),
            child,
        }
    }

    /// Sends an interrupt and returns the exit code.
    #[cfg(unix)]
    pub(crate) fn interrupt(mut self) -> Option<i32> {
        let sent = Command::new("kill")
            .args(["-INT", &self.child.id().to_string()])
            .status()
            .expect("kill can be run");
        assert!(sent.success());
        self.child.wait().expect("the process ends").code()
    }

    /// Waits for a line on stdout with these words.
    #[track_caller]
    pub(crate) fn says(&self, words: &str) -> String {
        self.line(&self.stdout, words)
    }

    /// Waits for a line on stderr with these words.
    #[track_caller]
    pub(crate) fn complains(&self, words: &str) -> String {
        self.line(&self.stderr, words)
    }

    #[track_caller]
    fn line(&self, lines: &Receiver<String>, words: &str) -> String {
        match heard(lines, |line| line.contains(words)) {
            Ok(mut heard) => heard.pop().expect("it ends with the line"),
            Err(heard) => panic!(
                "{} did not say {words:?} but\n{}",
                self.shown,
                heard.join("\n")
            ),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
