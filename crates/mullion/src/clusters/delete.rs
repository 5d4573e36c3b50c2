//! `mullion delete`: deletes a kept cluster without asking, like `kind delete cluster`.
//!
//! Only Mullion's files are deleted: the store, the log, and the cluster's own entries in kubeconfigs. If there are other files in the
//! directory, they and the directory stay.

use std::{
    fs,
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use mullion_store::{Store, StoreError, Window, erase};

use super::{NamedCluster, StoredCluster, keep, no_such, one_kept, one_running, running::Record};
use crate::{
    failure::Failure,
    kubeconfig::{self, Removed},
    out, up,
};

/// Deletes the chosen cluster.
pub(crate) async fn run(chosen: NamedCluster) -> Result<(), Failure> {
    let running = one_running(&chosen, "mullion delete")?;
    let kept = one_kept(&chosen, "mullion delete")?;
    let kept = match (kept, running) {
        (Some(kept), running)
            if !running
                .as_ref()
                .is_some_and(|record| runs_in(record, &kept)) =>
        {
            kept
        }
        (_, Some(record)) => return Err(still_running(&record.name, record.pid)),
        _ => return Err(no_such(&chosen)),
    };
    let noted = noted_kubeconfig(&kept.directory).await?;
    erase(&kept.directory).map_err(|error| keep::failure(&error))?;
    let log = up::detach::log_in(&kept.directory);
    for file in [log, kept.directory.join("lock")] {
        // The file may not exist.
        let _ = fs::remove_file(file);
    }
    let directory = kept.directory.display();
    out::line(&match fs::remove_dir(&kept.directory) {
        Ok(()) => format!("cluster {} is deleted, with {directory}", kept.name),
        Err(_) => format!(
            "cluster {} is deleted; {directory} stays, it holds other files",
            kept.name
        ),
    });
    forget(noted, &kept)
}

fn runs_in(record: &Record, kept: &StoredCluster) -> bool {
    record.directory.as_ref() == Some(&kept.directory)
}

fn still_running(name: &str, pid: u32) -> Failure {
    Failure::run(format!(
        "cluster {name} is running (process {pid}), so it is not deleted"
    ))
    .hint(format!(
        "stop it first: mullion down {name}. One that is not kept is gone then"
    ))
}

/// Returns the kubeconfig that was last written for a cluster. A damaged store has none, and is deleted anyway.
async fn noted_kubeconfig(directory: &Path) -> Result<Option<PathBuf>, Failure> {
    match Store::open(directory, Window::default(), Timestamp::now()) {
        Ok(store) => {
            let noted = keep::kubeconfig(store.notes());
            store.close().await;
            Ok(noted)
        }
        Err(error @ StoreError::InUse { .. }) => Err(keep::failure(&error)),
        Err(_) => Ok(None),
    }
}

/// Removes the cluster's entries from the kubeconfig that was written for it, and from the user's.
fn forget(noted: Option<PathBuf>, kept: &StoredCluster) -> Result<(), Failure> {
    let mark = kubeconfig::mark("", Some(&kept.directory));
    let usual = kubeconfig::user_kubeconfigs().unwrap_or_default();
    let mut places: Vec<PathBuf> = noted.into_iter().chain(usual).collect();
    places.dedup();
    for place in places {
        let shown = place.display();
        match kubeconfig::remove(&place, &mark)? {
            Some(Removed::Context) => out::line(&format!(
                "its context, cluster and user are removed from {shown}"
            )),
            Some(Removed::File) => out::line(&format!("its kubeconfig {shown} is removed")),
            None => {}
        }
    }
    Ok(())
}
