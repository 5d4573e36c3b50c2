//! What a process of ours holds while nobody asks it for anything, and how long it takes to say that it is ready.
//!
//! Each runs as a user starts it, as a process of its own with a state directory of its own, so that nothing of the benchmark is counted
//! and nothing of the user's is touched.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc::{RecvTimeoutError, sync_channel},
    time::{Duration, Instant},
};

use super::{Measured, Took, server::new_directory};
use crate::{failure::Failure, memory};

/// How long a process may take to be ready.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// How long it is left alone before its memory is read: what a start needs for a while is given back by then.
const SETTLES_IN: Duration = Duration::from_secs(5);
/// What the last line of a start begins with.
const READY: &str = "Ctrl-C";

/// `mullion apiserver` or `mullion up` with its default cluster, kept in a directory below `disk` or in memory.
pub(super) async fn of(command: &str, disk: Option<&Path>) -> Result<Measured, Failure> {
    let place = new_directory(disk.unwrap_or(&std::env::temp_dir()));
    let measured = {
        let (command, place, durable) = (command.to_owned(), place.clone(), disk.is_some());
        tokio::task::spawn_blocking(move || measure(&command, &place, durable)).await
    };
    let removed = std::fs::remove_dir_all(&place);
    let measured = measured.map_err(|error| Failure::run(format!("the benchmark: {error}")))??;
    removed.map_err(|error| Failure::run(format!("cannot remove {}: {error}", place.display())))?;
    Ok(measured)
}

/// A process, killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already. It is waited for, so that nobody writes below its directory any more.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn measure(command: &str, place: &Path, durable: bool) -> Result<Measured, Failure> {
    let failed = |why: String| Failure::run(format!("mullion {command} cannot be measured: {why}"));
    let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let mut start = Command::new(program);
    start
        .args([command, "--port", "0", "--kubeconfig"])
        .arg(place.join("kubeconfig"))
        .env("XDG_STATE_HOME", place)
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    if durable {
        start.arg("--data-dir").arg(place.join("data"));
    }
    std::fs::create_dir_all(place).map_err(|error| failed(error.to_string()))?;
    let began = Instant::now();
    let child = start.spawn().map_err(|error| failed(error.to_string()))?;
    let mut running = Running(child);
    let stdout = running.0.stdout.take();
    let (ready, heard) = sync_channel(1);
    let reader = std::thread::spawn(move || {
        let mut lines = BufReader::new(stdout?).lines().map_while(Result::ok);
        lines.find(|line| line.starts_with(READY))?;
        // Whoever waited may have given up.
        let _ = ready.send(());
        // Read to the end, so that it can go on printing.
        lines.for_each(drop);
        Some(())
    });
    let why = match heard.recv_timeout(START_PATIENCE) {
        Ok(()) => None,
        Err(RecvTimeoutError::Disconnected) => Some("it ended before it was ready".to_owned()),
        Err(RecvTimeoutError::Timeout) => {
            let seconds = START_PATIENCE.as_secs();
            Some(format!("it was not ready within {seconds} s"))
        }
    };
    if let Some(why) = why {
        return Err(failed(why));
    }
    let seconds = began.elapsed().as_secs_f64();
    std::thread::sleep(SETTLES_IN);
    let resident = memory::resident_bytes_of(running.0.id());
    drop(running);
    // A panic in there has been reported.
    let _ = reader.join();
    let took = Took { seconds, cpu: None };
    Ok(Measured::new(format!("idle-{command}"), 0, 1, took).with_resident(resident))
}
