//! What a cluster keeps on disk beside its objects, and what is said when the directory cannot be used.
//!
//! Everything is in the store's notes: the authority, the key of service accounts' tokens, the simulated cloud, the config it was made
//! from, the port. So one file holds a cluster, and a snapshot of it is whole.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use jiff::Timestamp;
use mullion_apiserver::{
    StoreError,
    store::{FolderState, Notes, Store, Window, erase, folder_state},
};
use mullion_cloud::sim::{Ledger, Saved};

use super::running::{self, Record};
use crate::{
    certs::{self, Authority},
    failure::Failure,
    up::{self, setup::Definitions},
};

const CA: &str = "pki/ca.crt";
const CA_KEY: &str = "pki/ca.key";
const FRONT_PROXY_CA: &str = "pki/front-proxy-ca.crt";
const CONFIG: &str = "cluster/config";
const SUBNET_BITS: &str = "cluster/subnet-bits";
const FILLED: &str = "cluster/filled";
const DEFINITIONS: &str = "cluster/definitions";
/// The definitions that every version has had.
const FIRST_DEFINITIONS: [&str; 5] = [
    "nodepools.karpenter.sh",
    "nodeclaims.karpenter.sh",
    "ec2nodeclasses.karpenter.k8s.aws",
    "provisioners.karpenter.sh",
    "awsnodetemplates.karpenter.k8s.aws",
];
const PORT: &str = "cluster/port";
const KUBECONFIG: &str = "cluster/kubeconfig";
const CLOUD: &str = "cloud/";

/// The store of a cluster: in a directory, or in memory.
pub(crate) fn open(
    directory: Option<&Path>,
    fresh: bool,
    now: Timestamp,
) -> Result<Arc<Store>, Failure> {
    let window = Window::default();
    let Some(directory) = directory else {
        return Ok(Arc::new(Store::new(window)));
    };
    check_is_free(directory)?;
    if fresh {
        // First, so that a start that is cut off leaves nothing that looks like somebody else's.
        let _ = fs::remove_file(up::detach::log_in(directory));
        erase(directory).map_err(|error| failure(&error))?;
    }
    let store = Store::open(directory, window, now).map_err(|error| failure(&error))?;
    Ok(Arc::new(store))
}

/// Refuses a directory that holds something, and no cluster: nothing is written there.
///
/// # Errors
/// What it holds.
pub(crate) fn check_is_free(directory: &Path) -> Result<(), Failure> {
    match folder_state(directory).map_err(|error| failure(&error))? {
        FolderState::Foreign { path } => {
            let name = path.file_name().unwrap_or_default().display();
            Err(Failure::input(format!(
                "{} holds {name} and no cluster, so none is kept there",
                directory.display()
            ))
            .hint("choose a directory that is new or empty: --data-dir DIR"))
        }
        FolderState::Empty | FolderState::Cluster | FolderState::Damaged { .. } => Ok(()),
    }
}

/// Whether a directory holds a cluster, or what is left of one.
pub(crate) fn is_kept(directory: &Path) -> bool {
    matches!(
        folder_state(directory),
        Ok(FolderState::Cluster | FolderState::Damaged { .. })
    )
}

/// What a user is told about a directory that cannot be used.
pub(crate) fn failure(error: &StoreError) -> Failure {
    if let StoreError::InUse { directory } = error
        && let Some(record) = running::in_directory(directory)
    {
        return already_runs(&record);
    }
    let hint = match error {
        StoreError::InUse { .. } => {
            "`mullion list` shows what runs; stop it with `mullion down`, or choose another directory with --data-dir DIR"
        }
        StoreError::Foreign { .. } => "choose another directory with --data-dir DIR",
        StoreError::Unwritable { .. } | StoreError::Io { .. } => {
            "choose a directory that you may write: --data-dir DIR"
        }
        StoreError::Unsynced { .. } | StoreError::Behind { .. } => {
            "look at the disk (`dmesg` may say more), then start again; or choose a directory on another disk: --data-dir DIR"
        }
        StoreError::Full { .. } => {
            "make room, or choose a directory on another disk: --data-dir DIR"
        }
        StoreError::Damaged { .. } => {
            "go back to a snapshot with `mullion snapshot restore FILE --force`, or start anew with `mullion up --fresh`"
        }
        StoreError::Format { .. } => {
            "use the version of mullion that wrote it, or start anew with `mullion up --fresh`"
        }
        StoreError::Unfinished { .. } => {
            "start it once more with the version of mullion that wrote it and stop it with `mullion down`, or start anew with `mullion up --fresh`"
        }
        StoreError::Occupied { .. } => "--force replaces it",
        StoreError::Empty { .. } | StoreError::Closed => {
            "`mullion list` shows the clusters there are"
        }
    };
    Failure::input(error).hint(hint)
}

/// What a user is told whose cluster runs already: which process it is, and how to reach and to stop it.
fn already_runs(record: &Record) -> Failure {
    let Record {
        name, pid, server, ..
    } = record;
    Failure::input(format!(
        "cluster {name} runs already: process {pid}, {server}"
    ))
    .hint(match &record.kubeconfig {
        Some(path) => format!(
            "use it: kubectl --kubeconfig {} get nodes; stop it: mullion down {name}",
            up::quoted(path)
        ),
        None => format!("use it: mullion status {name}; stop it: mullion down {name}"),
    })
}

/// The authority that is kept, or a new one that is kept from now on.
pub(crate) fn authority(notes: &Notes, now: Timestamp) -> Result<Authority, rcgen::Error> {
    if let (Some(pem), Some(key)) = (text(notes, CA), text(notes, CA_KEY)) {
        return Ok(Authority::from_pem(pem, key));
    }
    let authority = Authority::generate(now)?;
    let (pem, key) = authority.to_pem();
    notes.put(CA, pem.to_owned());
    notes.put(CA_KEY, key.to_owned());
    Ok(authority)
}

/// The authority for front proxies that is kept, or a new one that is kept from now on, in PEM.
pub(crate) fn front_proxy_authority(notes: &Notes, now: Timestamp) -> Result<String, rcgen::Error> {
    if let Some(pem) = text(notes, FRONT_PROXY_CA) {
        return Ok(pem);
    }
    let pem = certs::front_proxy_authority(now)?;
    notes.put(FRONT_PROXY_CA, pem.clone());
    Ok(pem)
}

/// The text of the config file that the cluster was made from, empty if it was made without one; none for a new cluster.
pub(crate) fn config(notes: &Notes) -> Option<String> {
    text(notes, CONFIG)
}

/// Notes what a new cluster is made from.
pub(crate) fn set_config(notes: &Notes, config: String) {
    notes.put(CONFIG, config);
}

/// Returns the length of the mask of subnets that the cluster was made with, if it was chosen.
pub(crate) fn subnet_bits(notes: &Notes) -> Option<u8> {
    text(notes, SUBNET_BITS)?.parse().ok()
}

/// Notes the length of the mask of a new cluster's subnets.
pub(crate) fn set_subnet_bits(notes: &Notes, bits: u8) {
    notes.put(SUBNET_BITS, bits.to_string());
}

/// Whether everything that a cluster begins with has been made.
pub(crate) fn is_filled(notes: &Notes) -> bool {
    notes.get(FILLED).is_some()
}

/// Notes that everything has been made that a cluster begins with.
pub(crate) fn set_filled(notes: &Notes) {
    notes.put(FILLED, "yes");
}

/// Returns the custom resource definitions that the cluster was given: Karpenter's, of unknown content, where an earlier version has
/// noted no names.
pub(crate) fn definitions(notes: &Notes) -> Definitions {
    let text = text(notes, DEFINITIONS).unwrap_or_default();
    let lines = text.lines().filter_map(|line| {
        let (name, number) = line.split_once(' ')?;
        Some((name.to_owned(), number.parse().ok()?))
    });
    let noted: Definitions = lines.collect();
    match noted.is_empty() {
        true => FIRST_DEFINITIONS.map(|name| (name.to_owned(), 0)).into(),
        false => noted,
    }
}

/// Notes which it has been given.
pub(crate) fn set_definitions(notes: &Notes, definitions: &Definitions) {
    let lines = definitions.iter();
    let lines: Vec<_> = lines
        .map(|(name, number)| format!("{name} {number}"))
        .collect();
    notes.put(DEFINITIONS, lines.join("\n"));
}

/// The port of the last start.
pub(crate) fn port(notes: &Notes) -> Option<u16> {
    text(notes, PORT)?.parse().ok()
}

/// Notes the port.
pub(crate) fn set_port(notes: &Notes, port: u16) {
    notes.put(PORT, port.to_string());
}

/// Returns the kubeconfig that was last written for the cluster.
pub(crate) fn kubeconfig(notes: &Notes) -> Option<PathBuf> {
    text(notes, KUBECONFIG).map(PathBuf::from)
}

/// Notes where the kubeconfig is, so that the cluster's entries can be found when it is deleted.
pub(crate) fn set_kubeconfig(notes: &Notes, path: &Path) {
    notes.put(KUBECONFIG, path.to_string_lossy().into_owned());
}

fn text(notes: &Notes, key: &str) -> Option<String> {
    String::from_utf8(notes.get(key)?.to_vec()).ok()
}

/// The simulated cloud's ledger among the notes.
pub(crate) struct CloudNotes(pub(crate) Notes);

impl CloudNotes {
    /// What the process before has left.
    pub(crate) fn saved(&self) -> Saved {
        let all = self.0.list(CLOUD).into_iter();
        all.map(|(key, value)| (key[CLOUD.len()..].to_owned(), value.to_vec()))
            .collect()
    }
}

impl fmt::Debug for CloudNotes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CloudNotes")
    }
}

impl Ledger for CloudNotes {
    fn put(&self, key: &str, value: Option<Vec<u8>>) {
        let key = format!("{CLOUD}{key}");
        match value {
            Some(value) => self.0.put(key, value),
            None => self.0.remove(key),
        }
    }
}
