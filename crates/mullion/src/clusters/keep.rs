//! The state of a cluster on disk besides its objects, and the errors about unusable directories.
//!
//! All of it is in the store's notes: the authority, the key for service account tokens, the simulated cloud, the original config, the
//! port. A cluster is therefore a single file, and a snapshot of it is complete.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use jiff::Timestamp;
use mullion_cloud::sim::{Ledger, Saved};
use mullion_store::{FolderState, Notes, Store, StoreError, Window, erase, folder_state};

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
/// The definitions that every version of this program has created.
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

/// Opens the store of a cluster, in a directory or in memory.
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
        // The log is removed first: if this start is interrupted afterwards, the directory does not look like one of another program.
        let _ = fs::remove_file(up::detach::log_in(directory));
        erase(directory).map_err(|error| failure(&error))?;
    }
    let store = Store::open(directory, window, now).map_err(|error| failure(&error))?;
    Ok(Arc::new(store))
}

/// Refuses a directory that has files but no cluster, because nothing must be written there.
///
/// # Errors
/// The directory has other files, which the error names.
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

/// Returns whether a directory has a cluster, or the rest of one.
pub(crate) fn is_kept(directory: &Path) -> bool {
    matches!(
        folder_state(directory),
        Ok(FolderState::Cluster | FolderState::Damaged { .. })
    )
}

/// Describes why a directory cannot be used.
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

/// Describes a cluster that is already running: its process, and how to reach and stop it.
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

/// Returns the stored authority, or a new one that is stored.
pub(crate) fn authority(notes: &Notes, now: Timestamp) -> Result<Authority, rcgen::Error> {
    if let (Some(pem), Some(key)) = (text(notes, CA), text(notes, CA_KEY)) {
        return Ok(Authority::from_pem(pem, key));
    }
    // A certificate without its key cannot sign, so both are created again if one of them is missing.
    let authority = Authority::generate(now)?;
    let (pem, key) = authority.to_pem();
    notes.put(CA, pem.to_owned());
    notes.put(CA_KEY, key.to_owned());
    Ok(authority)
}

/// Returns the stored authority for front proxies, or a new one that is stored, in PEM.
pub(crate) fn front_proxy_authority(notes: &Notes, now: Timestamp) -> Result<String, rcgen::Error> {
    if let Some(pem) = text(notes, FRONT_PROXY_CA) {
        return Ok(pem);
    }
    let pem = certs::front_proxy_authority(now)?;
    notes.put(FRONT_PROXY_CA, pem.clone());
    Ok(pem)
}

/// Returns the text of the cluster's config file, which is empty if the cluster was created without one; `None` for a new cluster.
pub(crate) fn config(notes: &Notes) -> Option<String> {
    text(notes, CONFIG)
}

/// Stores the config of a new cluster.
pub(crate) fn set_config(notes: &Notes, config: String) {
    notes.put(CONFIG, config);
}

/// Returns the prefix length of subnets with which the cluster was created, if the user chose it.
pub(crate) fn subnet_bits(notes: &Notes) -> Option<u8> {
    text(notes, SUBNET_BITS)?.parse().ok()
}

/// Stores the prefix length of a new cluster's subnets.
pub(crate) fn set_subnet_bits(notes: &Notes, bits: u8) {
    notes.put(SUBNET_BITS, bits.to_string());
}

/// Returns whether all initial objects have been created.
pub(crate) fn is_filled(notes: &Notes) -> bool {
    notes.get(FILLED).is_some()
}

/// Records that all initial objects have been created.
pub(crate) fn set_filled(notes: &Notes) {
    notes.put(FILLED, "yes");
}

/// Returns the custom resource definitions that the cluster was given. If an earlier version stored no names, these are Karpenter's, with
/// an unknown content (the hash 0).
pub(crate) fn definitions(notes: &Notes) -> Definitions {
    let text = text(notes, DEFINITIONS).unwrap_or_default();
    let lines = text.lines().filter_map(|line| {
        let (name, number) = line.split_once(' ')?;
        Some((name.to_owned(), number.parse().ok()?))
    });
    let noted: Definitions = lines.collect();
    if noted.is_empty() {
        FIRST_DEFINITIONS.map(|name| (name.to_owned(), 0)).into()
    } else {
        noted
    }
}

/// Stores the definitions that the cluster got.
pub(crate) fn set_definitions(notes: &Notes, definitions: &Definitions) {
    let lines = definitions.iter();
    let lines: Vec<_> = lines
        .map(|(name, number)| format!("{name} {number}"))
        .collect();
    notes.put(DEFINITIONS, lines.join("\n"));
}

/// Returns the port of the last start.
pub(crate) fn port(notes: &Notes) -> Option<u16> {
    text(notes, PORT)?.parse().ok()
}

/// Stores the port.
pub(crate) fn set_port(notes: &Notes, port: u16) {
    notes.put(PORT, port.to_string());
}

/// Returns the kubeconfig that was last written for the cluster.
pub(crate) fn kubeconfig(notes: &Notes) -> Option<PathBuf> {
    text(notes, KUBECONFIG).map(PathBuf::from)
}

/// Stores the path of the kubeconfig, so that the cluster's entries can be found when it is deleted.
pub(crate) fn set_kubeconfig(notes: &Notes, path: &Path) {
    notes.put(KUBECONFIG, path.to_string_lossy().into_owned());
}

fn text(notes: &Notes, key: &str) -> Option<String> {
    String::from_utf8(notes.get(key)?.to_vec()).ok()
}

/// The simulated cloud's ledger in the store's notes.
pub(crate) struct CloudNotes(pub(crate) Notes);

impl CloudNotes {
    /// Returns the ledger of the previous process.
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
