//! Measures the memory of an idle process of this program, and how long it takes until it reports that it is ready.
//!
//! Each process is started as a user would start it, with its own state directory, so that the benchmark's memory is not counted and the
//! user's state is not touched.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc::{RecvTimeoutError, sync_channel},
    time::{Duration, Instant},
};

use super::{LoadTime, Measured, server::new_directory};
use crate::{failure::Failure, memory};

/// The timeout for a process to be ready.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// How long the process is left alone before its memory is measured, because memory that was needed only for the start is released by then.
const SETTLES_IN: Duration = Duration::from_secs(5);
/// The beginning of the last line that a starting process prints.
const READY: &str = "Ctrl-C";

/// Measures `mullion apiserver` or `mullion up` with its default cluster, which is stored in a directory in `disk` or in memory.
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

/// A child process that is killed when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended already. Waiting for it makes sure that it writes no more files to its directory.
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
        // The receiver may have timed out.
        let _ = ready.send(());
        // The output is read to the end, so that the process does not block when it prints more.
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
    // A panic of the thread was printed already.
    let _ = reader.join();
    let took = LoadTime { seconds, cpu: None };
    Ok(Measured::new(format!("idle-{command}"), 0, 1, took).with_resident(resident))
}
