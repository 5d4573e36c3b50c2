//! `mullion snapshot`: copies a whole cluster to a file while it runs or is stopped, and creates a cluster from such a file.
//!
//! A file gets its name only when it is complete and its checksum is right. It contains the cluster's keys, so only its owner may read it.

use std::{
    fs::{self, File},
    io::{self, BufReader, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use futures::AsyncReadExt;
use http::Request;
use kube::Client;
use mullion_store::{CopyError, StoreError, check_copy, restore_copy};
use tokio::time::timeout;

use super::{
    NamedCluster, cannot, keep,
    running::{self, Record},
    several,
};
use crate::{failure::Failure, files, out};

/// The time in which a running cluster must begin its response, and then continue it.
const PATIENCE: Duration = Duration::from_secs(20);

/// Writes a cluster to a file.
pub(crate) async fn save(file: PathBuf, chosen: NamedCluster) -> Result<(), Failure> {
    let running = chosen.matching(running::all());
    let unwritable = |error: io::Error| cannot("written", &file, &error);
    let place = files::replaceable(&file).map_err(unwritable)?;
    // Beside the file, because a rename is atomic only within a file system.
    let part = files::temporary_name(&place).map_err(unwritable)?;
    let written = match (running.as_slice(), chosen.directory()?) {
        ([record], _) => from_running(record, &part).await,
        ([], Some(directory)) => from_stopped(&directory, &part),
        ([], None) => Err(Failure::input("no cluster is running").hint(
            "name one that is kept: --name NAME, or --data-dir DIR; `mullion list` shows them",
        )),
        (found, _) => Err(several(found, "mullion snapshot save FILE --name")),
    };
    let kept = written.and_then(|()| {
        let whole = File::open(&part).map_err(|error| cannot("read", &part, &error))?;
        // The process may have ended in the middle of the copy; only the checksum shows that nothing is
        // missing.
        check_copy(BufReader::new(whole)).map_err(|error| {
            Failure::run(format!("the snapshot was cut short: {error}"))
                .hint("is the cluster still running? `mullion list` says so")
        })?;
        fs::rename(&part, &place).map_err(unwritable)
    });
    if let Err(failure) = kept {
        // The partial file has a name that the user did not ask for.
        let _ = fs::remove_file(&part);
        return Err(failure);
    }
    let bytes = fs::metadata(&file).map_or(0, |meta| meta.len());
    out::line(&format!(
        "{} holds the cluster, {:.1} MB. It contains the cluster's keys: keep it private.",
        file.display(),
        bytes as f64 / 1e6
    ));
    Ok(())
}

/// Requests a copy from the running process.
async fn from_running(record: &Record, to: &Path) -> Result<(), Failure> {
    let failed = |why: &dyn std::fmt::Display| {
        Failure::run(format!(
            "cluster {} at {} gives no snapshot: {why}",
            record.name, record.server
        ))
    };
    if record.directory.is_none() {
        return Err(failed(&"it is in memory only").hint(
            "one that is started with --name NAME or --data-dir DIR can be copied while it runs",
        ));
    }
    let client = record
        .client()
        .await
        .map_err(|why| failed(&why.to_string()))?;
    copy(client, to).await.map_err(|stopped| match stopped {
        SnapshotFailure::Unwritten(failure) => failure,
        SnapshotFailure::Silent => failed(&format!("no answer within {} s", PATIENCE.as_secs()))
            .hint(format!(
                "is its process {} stopped? `mullion down` ends it",
                record.pid
            )),
        SnapshotFailure::Refused(why) => failed(&why),
    })
}

/// The reason why there is no copy.
enum SnapshotFailure {
    /// The server does not respond.
    Silent,
    /// The server or the connection refused.
    Refused(String),
    /// The file cannot be written.
    Unwritten(Failure),
}

/// Writes the content of a running server to a file.
async fn copy(client: Client, to: &Path) -> Result<(), SnapshotFailure> {
    let refused = |error: &dyn std::fmt::Display| SnapshotFailure::Refused(error.to_string());
    let request = Request::get("/snapshot").body(Vec::new());
    let request = request.map_err(|error| refused(&error))?;
    let stream = timeout(PATIENCE, client.request_stream(request)).await;
    let stream = stream.map_err(|_| SnapshotFailure::Silent)?;
    let mut stream = std::pin::pin!(stream.map_err(|error| match error {
        kube::Error::Api(status) => SnapshotFailure::Refused(status.message),
        error => refused(&error),
    })?);
    let mut file = private(to).map_err(SnapshotFailure::Unwritten)?;
    let unwritten = |error| SnapshotFailure::Unwritten(cannot("written", to, &error));
    let mut buffer = vec![0; 1 << 16];
    loop {
        let read = timeout(PATIENCE, stream.read(&mut buffer)).await;
        let read = read.map_err(|_| SnapshotFailure::Silent)?;
        let read = read.map_err(|error| refused(&error))?;
        if read == 0 {
            break;
        }
        file.write_all(&buffer[..read]).map_err(unwritten)?;
    }
    // Before the rename: a name must not survive a power failure that its content does not.
    file.sync_all().map_err(unwritten)
}

/// Copies a directory that no process uses.
fn from_stopped(directory: &Path, to: &Path) -> Result<(), Failure> {
    if !keep::is_kept(directory) {
        let directory = directory.to_owned();
        return Err(keep::failure(&StoreError::Empty { directory }));
    }
    let store = keep::open(Some(directory), false, jiff::Timestamp::now())?;
    let mut file = private(to)?;
    store
        .copy_to(&mut file)
        .map_err(|error| copy_failure(&error, to))?;
    file.sync_all()
        .map_err(|error| cannot("written", to, &error))
}

/// Creates a cluster from a file.
pub(crate) fn restore(file: PathBuf, chosen: NamedCluster, force: bool) -> Result<(), Failure> {
    let Some(directory) = chosen.directory()? else {
        return Err(
            Failure::input("it is not said which cluster is to be restored").hint(
                "--name NAME makes it the cluster of that name, --data-dir DIR puts it there",
            ),
        );
    };
    keep::check_is_free(&directory)?;
    let open = || File::open(&file).map_err(|error| cannot("read", &file, &error));
    // Before anything is touched: a broken file must be no reason to lock or replace a cluster.
    check_copy(BufReader::new(open()?)).map_err(|error| copy_failure(&error, &file))?;
    restore_copy(open()?, &directory, force).map_err(|error| copy_failure(&error, &file))?;
    let how = match (&chosen.directory, &chosen.name) {
        (None, Some(name)) => format!("--name {name}"),
        _ => format!("--data-dir {}", directory.display()),
    };
    out::line(&format!(
        "{} holds the cluster of {} again. Start it: mullion up {how}",
        directory.display(),
        file.display()
    ));
    Ok(())
}

fn copy_failure(error: &CopyError, file: &Path) -> Failure {
    match error {
        CopyError::Store(error) => keep::failure(error),
        error @ CopyError::Malformed(_) => Failure::input(format!("{}: {error}", file.display()))
            .hint("`mullion snapshot save FILE` writes one"),
        error => Failure::run(format!("{}: {error}", file.display())),
    }
}

fn private(path: &Path) -> Result<File, Failure> {
    files::private(path).map_err(|error| cannot("written", path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The server behaves like a stopped process (SIGSTOP), for which the system still accepts connections.
    #[tokio::test(start_paused = true)]
    async fn a_server_that_says_nothing_is_not_waited_for_for_ever() {
        let mute = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let server = format!("http://{}", mute.local_addr().expect("an address"));
        let directory = tempfile::tempdir().expect("a directory");
        let access = serde_json::json!({
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
            "users": [{"name": "c", "user": {}}],
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "current-context": "c",
        });
        let record = Record {
            name: "c".into(),
            pid: 4711,
            server: server.clone(),
            kubeconfig: None,
            directory: Some(directory.path().to_owned()),
            started: jiff::Timestamp::UNIX_EPOCH,
            log: None,
            access,
        };
        let copied = from_running(&record, &directory.path().join("copy")).await;
        let failure = copied.expect_err("nobody answers");
        assert_eq!(
            failure.to_string(),
            format!(
                "error: cluster c at {server} gives no snapshot: no answer within 20 s\nhint:  is its process 4711 stopped? `mullion down` ends it"
            )
        );
    }
}
