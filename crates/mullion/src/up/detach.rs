//! `mullion up --detach`: runs the cluster in a process that outlives the terminal.
//!
//! The command starts itself again. The new process shows its progress on the same terminal until the cluster runs. Then it detaches: it
//! leaves the session, writes to a log file from then on, and reports that over its stdin, a socket that the first process reads. A start
//! that fails has printed its error itself, and the command has its exit code.

use std::path::{Path, PathBuf};

use crate::{failure::Failure, kubeconfig};

/// The flag that marks the new process.
const FLAG: &str = "--detached";

/// Returns the log of a cluster in a directory.
pub(crate) fn log_in(directory: &Path) -> PathBuf {
    directory.join("mullion.log")
}

/// Returns the log of a cluster: in its directory, or below the state directory for a cluster in memory.
pub(super) fn log(directory: Option<&Path>, name: &str, port: u16) -> Result<PathBuf, Failure> {
    if let Some(directory) = directory {
        return Ok(log_in(directory));
    }
    let logs = kubeconfig::state_dir()?.join("mullion").join("logs");
    Ok(logs.join(format!("{name}-{port}.log")))
}

#[cfg(unix)]
mod unix {
    use std::{
        fs::File,
        io::{self, Read, Write},
        net::Shutdown,
        os::{fd::AsFd, unix::net::UnixStream},
        path::Path,
        process::{Command, Stdio},
    };

    use super::FLAG;
    use crate::{
        failure::{Failure, file_error},
        files,
    };

    /// Starts the new process and waits until it detaches. Returns its exit code if it ended instead.
    pub(crate) fn start(reads_stdin: bool) -> Result<Option<i32>, Failure> {
        let failed = |error: io::Error| {
            Failure::run(format!(
                "no process can be started for the cluster: {}",
                file_error(&error)
            ))
        };
        // One socket serves for both directions: the new process reads the config from its stdin and answers
        // on it.
        let (mut ours, theirs) = UnixStream::pair().map_err(failed)?;
        let mut child = {
            let mut command = Command::new(std::env::current_exe().map_err(failed)?);
            command
                .args(std::env::args_os().skip(1))
                .arg(FLAG)
                .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)));
            command.spawn().map_err(failed)?
        };
        if reads_stdin {
            // A child process that refuses its flags ends without reading, so a failed write is no error here.
            let _ = io::copy(&mut io::stdin(), &mut ours);
        }
        let _ = ours.shutdown(Shutdown::Write);
        let mut said = Vec::new();
        // The child may end with unread bytes in the socket, which makes the read fail.
        let _ = ours.read_to_end(&mut said);
        if !said.is_empty() {
            return Ok(None);
        }
        let status = child.wait().map_err(failed)?;
        match status.code() {
            Some(code) => Ok(Some(code)),
            None => Err(Failure::run(format!(
                "the cluster's process was ended before it was there: {status}"
            ))),
        }
    }

    /// Detaches from the terminal and the process's parent; all further output goes to `log`.
    pub(crate) fn detach_from_terminal(log: &Path) -> Result<(), Failure> {
        let failed = |error: io::Error| {
            Failure::input(format!(
                "the log {} cannot be written: {}",
                log.display(),
                file_error(&error)
            ))
        };
        if let Some(directory) = log.parent() {
            std::fs::create_dir_all(directory).map_err(failed)?;
        }
        let file = files::private(log).map_err(failed)?;
        let null = File::open("/dev/null").map_err(failed)?;
        let stdin = io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
        let gone = |error: io::Error| {
            Failure::run(format!(
                "the process that asked for the cluster is gone: {}",
                file_error(&error)
            ))
        };
        // Before stdin is replaced, which closes the socket.
        UnixStream::from(stdin).write_all(b".").map_err(gone)?;
        // This fails only for the leader of a process group, which a newly started child process is not.
        let _ = rustix::process::setsid();
        let moved = rustix::stdio::dup2_stdin(&null)
            .and_then(|()| rustix::stdio::dup2_stdout(&file))
            .and_then(|()| rustix::stdio::dup2_stderr(&file));
        moved.map_err(|error| failed(error.into()))
    }
}

#[cfg(not(unix))]
mod other {
    use std::path::Path;

    use crate::failure::Failure;

    /// Fails, because nothing could stop the process on this system.
    pub(crate) fn start(_reads_stdin: bool) -> Result<Option<i32>, Failure> {
        Err(
            Failure::input("a cluster cannot run in the background on this system")
                .hint("leave --detach out"),
        )
    }

    /// Is never called, because [`start`] fails.
    pub(crate) fn let_go(_log: &Path) -> Result<(), Failure> {
        start(false).map(drop)
    }
}

#[cfg(not(unix))]
pub(crate) use other::{let_go, start};
#[cfg(unix)]
pub(crate) use unix::{detach_from_terminal, start};
