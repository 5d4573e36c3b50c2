//! Programs that run beside a test, with their words in a file.

use std::{
    fs::File,
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::cluster::PATIENCE;

/// How often a condition is looked at.
pub(super) const LOOK: Duration = Duration::from_millis(200);

/// A process that ends when this is dropped.
pub(crate) struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    pub(crate) fn start(command: &mut Command, log: PathBuf) -> Process {
        let file = File::create(&log).expect("a file for the log");
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("a second handle"))
            .stderr(file)
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?} cannot be run: {error}"));
        Process { child, log }
    }

    /// What it has said so far.
    pub(crate) fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until it says this.
    #[track_caller]
    pub(crate) fn says(&mut self, words: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !self.said().contains(words) {
            assert!(
                !self.has_ended() && Instant::now() < deadline,
                "it never says {words:?}:\n{}",
                self.said()
            );
            thread::sleep(LOOK);
        }
    }

    /// Whether it has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.ended().is_some()
    }

    /// How it has ended by itself.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be asked")
    }

    /// Sends it a signal, such as `STOP`.
    #[track_caller]
    pub(crate) fn signal(&self, name: &str) {
        let (signal, pid) = (format!("-{name}"), self.child.id().to_string());
        let sent = Command::new("kill").args([signal, pid]).status();
        assert!(sent.expect("kill can be run").success());
    }

    /// Asks it to end (SIGTERM) and returns its exit code.
    pub(crate) fn terminate(mut self) -> Option<i32> {
        self.signal("TERM");
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child can be asked") {
                return status.code();
            }
            assert!(
                Instant::now() < deadline,
                "it does not end:\n{}",
                self.said()
            );
            thread::sleep(LOOK);
        }
    }

    /// Ends it at once (SIGKILL).
    pub(crate) fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A port that nobody listens on now.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}
