//! The kubeconfig that leads a client to the cluster: a file of its own, or a context added to the user's.
//!
//! Invariant: nothing that Mullion did not write is replaced or removed. Every cluster, user and context that Mullion writes carries the
//! extension [`entries::MARK`], which kubectl keeps; a file is Mullion's when it holds nothing else. What leads to a running cluster stays
//! too. [`mod@file`] reads and writes, [`entries`] knows what is in a file.

mod entries;
mod file;

use std::{
    env,
    net::{IpAddr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::{Value, json};

use crate::{
    certs::Certs,
    failure::{Failure, file_error},
    files,
};

pub(crate) use self::file::{Removed, remove, yaml};

/// How long a server on this machine may take to accept a connection.
const CONNECT_PATIENCE: Duration = Duration::from_millis(200);

/// How a client reaches the server that a kubeconfig leads to. A server on this machine is asked directly, as kubectl does, whatever proxy the
/// environment names; one that the kubeconfig names counts.
///
/// # Errors
/// The kubeconfig leads nowhere, or a file that it names cannot be read.
pub(crate) async fn client_config(
    kubeconfig: kube::config::Kubeconfig,
    options: &kube::config::KubeConfigOptions,
) -> Result<kube::Config, kube::config::KubeconfigError> {
    let mut clusters = kubeconfig.clusters.iter();
    let names_proxy = clusters.any(|named| {
        let cluster = named.cluster.as_ref();
        cluster.is_some_and(|cluster| cluster.proxy_url.is_some())
    });
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, options).await?;
    if !names_proxy && is_here(config.cluster_url.host().unwrap_or_default()) {
        config.proxy_url = None;
    }
    Ok(config)
}

/// Whether a host of a URL is this machine.
fn is_here(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    let loopback = address.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    loopback || host == "localhost" || host.ends_with(".localhost")
}

/// Where the kubeconfig goes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Target {
    /// The usual file in the state directory, or one beside it while that file is not free.
    Usual(PathBuf),
    /// A file of its own.
    File(PathBuf),
    /// The user's own file, of which only Mullion's entries of the cluster's name are replaced.
    Merge(PathBuf),
}

impl Target {
    /// Decides by the flags `--kubeconfig` and `--merge`, else takes the state directory of the XDG rules. Whether the file leads to a
    /// running cluster is asked for a new cluster only: a kept one may be running itself, and its directory says so then.
    ///
    /// # Errors
    /// The file is not one that may be written for a cluster of this name.
    pub(crate) fn resolve(
        path: Option<PathBuf>,
        merge: bool,
        name: &str,
        is_kept: bool,
    ) -> Result<Target, Failure> {
        // What is printed has to be true in other directories, too.
        let path = path.map(|path| std::path::absolute(&path).unwrap_or(path));
        let target = match (path, merge) {
            (Some(path), false) => Target::File(path),
            (Some(path), true) => Target::Merge(path),
            (None, false) => Target::Usual(usual()?),
            (None, true) => Target::Merge(to_merge_into(&user_kubeconfigs()?, name)),
        };
        match target {
            // Whether it is free is found out when there is another name for it: the port.
            Target::Usual(_) => Ok(target),
            _ => {
                let others = (!is_kept).then_some("");
                target.check(name, others).map(|_| target)
            }
        }
    }

    /// Returns the target of a cluster that listens on `port`: one named after the port while the usual file is not Mullion's or leads to
    /// another running cluster.
    pub(crate) fn free(self, port: u16) -> Target {
        let own = format!("https://127.0.0.1:{port}");
        match self {
            Target::Usual(path) => match Target::File(path.clone()).check("", Some(&own)) {
                Err(_) => Target::Usual(path.with_file_name(format!("kubeconfig-{port}"))),
                Ok(_) => Target::Usual(path),
            },
            other => other,
        }
    }

    /// Returns what the file holds, if it may be written for the cluster `name` that listens at `own`. Without `own` nobody asks whether it
    /// leads to another running cluster.
    fn check(&self, name: &str, own: Option<&str>) -> Result<Value, Failure> {
        let path = self.path();
        files::replaceable(path).map_err(|error| unwritable(path, &file_error(&error)))?;
        let found = file::read(path);
        match self {
            Target::Merge(_) => {
                let found =
                    found.map_err(|failure| failure.hint("mend the file, or leave --merge out"))?;
                let config = found.config;
                let beside = files_beside(path);
                let others = beside.iter().map(|(path, config)| (&**path, config));
                for (path, config) in others.chain([(path, &config)]) {
                    entries::check_name_is_free(config, name).map_err(|title| {
                        Failure::input(format!(
                            "{} has a {title} that Mullion did not write, so it is not replaced",
                            path.display()
                        ))
                        .hint("give the cluster another name: --name NAME")
                    })?;
                }
                let leads = entries::servers(&config, Some(name));
                match running(leads, own) {
                    Some(server) => Err(Failure::input(format!(
                        "the context {name} in {} leads to a running cluster, {server}, so it is not replaced",
                        path.display()
                    ))
                    .hint("give this cluster another name with --name NAME, or stop the other: `mullion list` shows what runs")),
                    None => Ok(config),
                }
            }
            Target::Usual(_) | Target::File(_) => {
                let kept = |why: String| {
                    Failure::input(format!("{} {why}, so it is not replaced", path.display()))
                };
                let beside = "name another file with --kubeconfig PATH, or add a context to yours with `mullion up --merge`";
                let found = found.map_err(|_| {
                    kept("is no kubeconfig that Mullion wrote".to_owned()).hint(beside)
                })?;
                let what = entries::foreign(&found);
                let config = found.config;
                if let Some(what) = what {
                    let why = format!("holds {what} that Mullion did not write");
                    return Err(kept(why).hint(beside));
                }
                match running(entries::servers(&config, None), own) {
                    Some(server) => Err(kept(format!("leads to a running cluster, {server}")).hint(
                        "name another file with --kubeconfig PATH, or stop that cluster: `mullion list` shows what runs",
                    )),
                    None => Ok(config),
                }
            }
        }
    }

    /// Returns the file.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Target::Usual(path) | Target::File(path) | Target::Merge(path) => path,
        }
    }
}

/// Returns the first server that accepts a connection, other than `own`; none where there is no `own`.
fn running(servers: Vec<String>, own: Option<&str>) -> Option<String> {
    let own = own?;
    let answers = |server: &String| {
        let address = server.strip_prefix("https://");
        let address: Option<SocketAddr> = address.and_then(|address| address.parse().ok());
        address
            .is_some_and(|address| TcpStream::connect_timeout(&address, CONNECT_PATIENCE).is_ok())
    };
    let mut others = servers.into_iter().filter(|server| *server != own);
    others.find(answers)
}

fn unwritable(path: &Path, why: &str) -> Failure {
    Failure::input(format!(
        "kubeconfig {} cannot be written: {why}",
        path.display()
    ))
    .hint("name a file that you may write: --kubeconfig PATH")
}

/// Returns the usual kubeconfig of `mullion up`, unless the user's environment names another.
pub(crate) fn of_running_cluster() -> Option<PathBuf> {
    if env::var_os("KUBECONFIG").is_some_and(|list| !list.is_empty()) {
        return None;
    }
    usual().ok().filter(|usual| usual.is_file())
}

fn usual() -> Result<PathBuf, Failure> {
    Ok(state_dir()?.join("mullion").join("kubeconfig"))
}

fn home() -> Result<PathBuf, Failure> {
    env::home_dir()
        .filter(|home| !home.as_os_str().is_empty())
        .ok_or_else(|| {
            Failure::input("no home directory is known (HOME is not set)")
                .hint("name a file: --kubeconfig PATH")
        })
}

/// Returns where programs keep what is theirs between two runs (the XDG rules).
pub(crate) fn state_dir() -> Result<PathBuf, Failure> {
    match env::var_os("XDG_STATE_HOME").map(PathBuf::from) {
        Some(dir) if dir.is_absolute() => Ok(dir),
        _ => Ok(home()?.join(".local").join("state")),
    }
}

/// Returns the files that kubectl reads: those of `$KUBECONFIG`, else `~/.kube/config`.
pub(crate) fn user_kubeconfigs() -> Result<Vec<PathBuf>, Failure> {
    let listed = listed_kubeconfigs();
    match listed.is_empty() {
        true => Ok(vec![home()?.join(".kube").join("config")]),
        false => Ok(listed),
    }
}

fn listed_kubeconfigs() -> Vec<PathBuf> {
    let list = env::var_os("KUBECONFIG").unwrap_or_default();
    let mut files: Vec<PathBuf> = Vec::new();
    for file in env::split_paths(&list) {
        if !file.as_os_str().is_empty() && !files.contains(&file) {
            files.push(file);
        }
    }
    files
}

/// Returns the file of several in which kubectl would change a context (client-go: `ModifyConfig`, `GetDefaultFilename`): the one that has it
/// already, else the first that exists, else the last.
fn to_merge_into(files: &[PathBuf], name: &str) -> PathBuf {
    let has_it =
        |path: &&PathBuf| file::read(path).is_ok_and(|found| entries::has_own(&found.config, name));
    let exists = |path: &&PathBuf| path.exists();
    let mut all = files.iter();
    let chosen = all
        .clone()
        .find(has_it)
        .or_else(|| all.clone().find(exists));
    chosen
        .or_else(|| all.next_back())
        .cloned()
        .unwrap_or_default()
}

/// Returns the other files that kubectl reads together with this one, as far as they can be read.
fn files_beside(path: &Path) -> Vec<(PathBuf, Value)> {
    beside(path, listed_kubeconfigs())
}

fn beside(path: &Path, mut files: Vec<PathBuf>) -> Vec<(PathBuf, Value)> {
    if !files.iter().any(|file| file == path) {
        return Vec::new();
    }
    files.retain(|file| file != path);
    let read = files.into_iter().filter_map(|path| {
        let config = file::read(&path).ok()?.config;
        Some((path, config))
    });
    read.collect()
}

/// The cluster a kubeconfig leads to.
pub(crate) struct Cluster<'a> {
    /// Name of cluster, user and context.
    pub(crate) name: &'a str,
    /// `https://127.0.0.1:6443`.
    pub(crate) server: &'a str,
    /// Where it is kept; none if in memory only.
    pub(crate) directory: Option<&'a Path>,
    /// The CA and the administrator's certificate.
    pub(crate) certs: &'a Certs,
}

/// Returns what the entries of a cluster are known by: its directory, or for a cluster in memory its server.
pub(crate) fn mark(server: &str, directory: Option<&Path>) -> Value {
    match directory {
        Some(directory) => json!({ "directory": directory }),
        None => json!({ "server": server }),
    }
}

/// Returns a kubeconfig that leads nowhere else.
pub(crate) fn alone(cluster: &Cluster<'_>) -> Value {
    entries::merged(json!({}), cluster, true)
}

/// Writes the kubeconfig of a running cluster to a file of its own, which only its owner may read.
///
/// # Errors
/// The file cannot be written, or may not be: see [`Target::resolve`].
pub(crate) fn write_alone(path: &Path, server: &str, config: &Value) -> Result<(), Failure> {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    Target::File(path.clone()).check("", Some(server))?;
    file::write(&path, config)
}

/// Writes or merges the kubeconfig.
///
/// # Errors
/// The file cannot be written, or may not be: see [`Target::resolve`].
pub(crate) fn write(target: &Target, cluster: &Cluster<'_>) -> Result<(), Failure> {
    let _lock = match target {
        Target::Merge(path) => Some(file::Lock::take(path)?),
        Target::Usual(_) | Target::File(_) => None,
    };
    let found = target.check(cluster.name, Some(cluster.server))?;
    let config = match target {
        Target::Usual(_) | Target::File(_) => alone(cluster),
        Target::Merge(path) => {
            let beside = files_beside(path);
            let chosen = beside
                .iter()
                .any(|(_, config)| entries::has_current(config));
            entries::merged(found, cluster, !chosen)
        }
    };
    file::write(target.path(), &config)
}

#[cfg(test)]
mod tests;
