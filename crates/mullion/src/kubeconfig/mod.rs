//! The kubeconfig for the cluster: a file of its own, or a context in the user's file.
//!
//! Invariant: entries that Mullion did not write are never replaced or removed. Every cluster, user and context that Mullion writes has the
//! extension [`entries::MARK`], which kubectl keeps; a file is Mullion's if all its entries have it. Entries of a running cluster also
//! stay. [`mod@file`] reads and writes files, and [`entries`] handles their content.

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

/// The time in which a server on this machine must accept a connection.
const CONNECT_PATIENCE: Duration = Duration::from_millis(200);

/// Returns the client configuration for a kubeconfig. As in kubectl, a server on this machine is connected directly, even if the
/// environment names a proxy; a proxy in the kubeconfig is used.
///
/// # Errors
/// The kubeconfig is unusable, or a file that it names cannot be read.
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

/// Returns whether the host of a URL is this machine.
fn is_here(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    let loopback = address.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    loopback || host == "localhost" || host.ends_with(".localhost")
}

/// The destination of the kubeconfig.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Target {
    /// The usual file in the state directory, or one next to it if that file is in use.
    Usual(PathBuf),
    /// A file of its own.
    File(PathBuf),
    /// The user's own file, in which only Mullion's entries with the cluster's name are replaced.
    Merge(PathBuf),
}

impl Target {
    /// Chooses the target by the flags `--kubeconfig` and `--merge`, or else by the XDG rules for the state directory. Only for a new
    /// cluster, the file is checked for a running cluster: a kept cluster may be running itself, and its directory shows that later.
    ///
    /// # Errors
    /// The file must not be written for a cluster of this name.
    pub(crate) fn resolve(
        path: Option<PathBuf>,
        merge: bool,
        name: &str,
        is_kept: bool,
    ) -> Result<Target, Failure> {
        // The path is printed, so it must also be valid in other directories.
        let path = path.map(|path| std::path::absolute(&path).unwrap_or(path));
        let target = match (path, merge) {
            (Some(path), false) => Target::File(path),
            (Some(path), true) => Target::Merge(path),
            (None, false) => Target::Usual(usual()?),
            (None, true) => Target::Merge(to_merge_into(&user_kubeconfigs()?, name)),
        };
        match target {
            // The usual file is checked later, when the port is known, which gives it another name if necessary.
            Target::Usual(_) => Ok(target),
            _ => {
                let others = (!is_kept).then_some("");
                target.check(name, others).map(|_| target)
            }
        }
    }

    /// Returns the target for a cluster that listens on `port`: a file named after the port if the usual file is not Mullion's or belongs
    /// to another running cluster.
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

    /// Returns the content of the file, if it may be written for the cluster `name` that listens at `own`. Without `own`, running clusters
    /// are not checked.
    fn check(&self, name: &str, own: Option<&str>) -> Result<Value, Failure> {
        let path = self.path();
        files::replaceable(path).map_err(|error| unwritable(path, &file_error(&error)))?;
        let found = file::read(path);
        match self {
            Target::Merge(_) => {
                let found =
                    found.map_err(|failure| failure.hint("mend the file, or leave --merge out"))?;
                let config = found.config;
                // kubectl merges all files of $KUBECONFIG, so the name must be free in each of them.
                let other_files = other_files(path);
                let others = other_files.iter().map(|(path, config)| (&**path, config));
                for (path, config) in others.chain([(path, &config)]) {
                    entries::check_name_is_free(config, name).map_err(
                        |entries::ForeignEntry(title)| {
                            Failure::input(format!(
                            "{} has a {title} that Mullion did not write, so it is not replaced",
                            path.display()
                        ))
                        .hint("give the cluster another name: --name NAME")
                        },
                    )?;
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
                let hint = "name another file with --kubeconfig PATH, or add a context to yours with `mullion up --merge`";
                let found = found.map_err(|_| {
                    kept("is no kubeconfig that Mullion wrote".to_owned()).hint(hint)
                })?;
                let what = entries::foreign(&found);
                let config = found.config;
                if let Some(what) = what {
                    let why = format!("holds {what} that Mullion did not write");
                    return Err(kept(why).hint(hint));
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

    /// Returns the path of the file.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Target::Usual(path) | Target::File(path) | Target::Merge(path) => path,
        }
    }
}

/// Returns the first server besides `own` that accepts a connection; `None` without `own`.
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

/// Returns the usual kubeconfig of `mullion up`, unless the environment names another one.
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

/// Returns the directory for state between runs (XDG rules).
pub(crate) fn state_dir() -> Result<PathBuf, Failure> {
    match env::var_os("XDG_STATE_HOME").map(PathBuf::from) {
        Some(dir) if dir.is_absolute() => Ok(dir),
        _ => Ok(home()?.join(".local").join("state")),
    }
}

/// Returns the files that kubectl reads: those of `$KUBECONFIG`, or else `~/.kube/config`.
pub(crate) fn user_kubeconfigs() -> Result<Vec<PathBuf>, Failure> {
    let listed = listed_kubeconfigs();
    if listed.is_empty() {
        Ok(vec![home()?.join(".kube").join("config")])
    } else {
        Ok(listed)
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

/// Returns the file in which kubectl would change a context (client-go: `ModifyConfig`, `GetDefaultFilename`): the one that has it, or else
/// the first that exists, or else the last.
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
fn other_files(path: &Path) -> Vec<(PathBuf, Value)> {
    read_others(path, listed_kubeconfigs())
}

fn read_others(path: &Path, mut files: Vec<PathBuf>) -> Vec<(PathBuf, Value)> {
    // kubectl reads the other files only together with this one if `$KUBECONFIG` names it too.
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

/// The cluster of a kubeconfig.
pub(crate) struct Cluster<'a> {
    /// Name of cluster, user and context.
    pub(crate) name: &'a str,
    /// The URL of the server, `https://127.0.0.1:6443`.
    pub(crate) server: &'a str,
    /// The directory; `None` if it is in memory only.
    pub(crate) directory: Option<&'a Path>,
    /// The CA and the administrator's certificate.
    pub(crate) certs: &'a Certs,
}

/// Returns the mark of a cluster's entries: its directory, or for a cluster in memory its server.
pub(crate) fn mark(server: &str, directory: Option<&Path>) -> Value {
    match directory {
        Some(directory) => json!({ "directory": directory }),
        None => json!({ "server": server }),
    }
}

/// Returns a kubeconfig with this cluster only.
pub(crate) fn for_cluster(cluster: &Cluster<'_>) -> Value {
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
    // Checked again although [`Target::resolve`] did: the file may have changed while the cluster started.
    let found = target.check(cluster.name, Some(cluster.server))?;
    let config = match target {
        Target::Usual(_) | Target::File(_) => for_cluster(cluster),
        Target::Merge(path) => {
            let other_files = other_files(path);
            // The current context of any file counts for all of them, so a choice in another file is
            // respected.
            let chosen = other_files
                .iter()
                .any(|(_, config)| entries::has_current(config));
            entries::merged(found, cluster, !chosen)
        }
    };
    file::write(target.path(), &config)
}

#[cfg(test)]
mod tests;
