//! The kubeconfig that leads a client to the cluster: a file of its own, or a context added to the user's.
//!
//! A merge keeps whatever else the user's file holds; files are written beside their place and moved there, mode 0600.

use std::{
    env, fs, io,
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::{
    certs::Certs,
    failure::{Failure, file_error, first_line},
};

/// Where the kubeconfig goes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Target {
    /// The usual file in the state directory, or one beside it while another cluster uses that.
    Usual(PathBuf),
    /// A file of its own, overwritten.
    File(PathBuf),
    /// The user's own file, of which only our entries are replaced.
    Merge(PathBuf),
}

impl Target {
    /// From the flags: `--kubeconfig`, `--merge`, or the state directory of the XDG rules.
    pub(crate) fn resolve(path: Option<PathBuf>, merge: bool) -> Result<Target, Failure> {
        // What is printed has to be true in other directories, too.
        let path = path.map(|path| std::path::absolute(&path).unwrap_or(path));
        match (path, merge) {
            (Some(path), false) => Ok(Target::File(path)),
            (Some(path), true) => Ok(Target::Merge(path)),
            (None, false) => Ok(Target::Usual(
                state_dir()?.join("mullion").join("kubeconfig"),
            )),
            (None, true) => Ok(Target::Merge(user_kubeconfig()?)),
        }
    }

    /// The target of a cluster that listens on `port`: while the usual file leads to another running cluster, one named after the port.
    pub(crate) fn free(self, port: u16) -> Target {
        match self {
            Target::Usual(path) => match used_by_another(&path, port) {
                true => Target::Usual(path.with_file_name(format!("kubeconfig-{port}"))),
                false => Target::Usual(path),
            },
            other => other,
        }
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Target::Usual(path) | Target::File(path) | Target::Merge(path) => path,
        }
    }
}

/// The kubeconfig that `mullion up` wrote to the usual place, unless the user's environment names another.
pub(crate) fn of_running_cluster() -> Option<PathBuf> {
    if env::var_os("KUBECONFIG").is_some_and(|list| !list.is_empty()) {
        return None;
    }
    let usual = state_dir().ok()?.join("mullion").join("kubeconfig");
    usual.is_file().then_some(usual)
}

/// Whether a kubeconfig leads to a server on this machine, other than on `port`, that answers.
fn used_by_another(path: &Path, port: u16) -> bool {
    const PATIENCE: Duration = Duration::from_millis(200);
    let Ok(config) = read(path) else { return false };
    let server = config["clusters"][0]["cluster"]["server"]
        .as_str()
        .unwrap_or_default();
    let address: Option<SocketAddr> = server
        .strip_prefix("https://")
        .and_then(|address| address.parse().ok());
    address.is_some_and(|address| {
        address.port() != port && TcpStream::connect_timeout(&address, PATIENCE).is_ok()
    })
}

fn home() -> Result<PathBuf, Failure> {
    env::home_dir()
        .filter(|home| !home.as_os_str().is_empty())
        .ok_or_else(|| {
            Failure::input("no home directory is known (HOME is not set)")
                .hint("name a file: --kubeconfig PATH")
        })
}

/// Where programs keep what is theirs between two runs (the XDG rules).
pub(crate) fn state_dir() -> Result<PathBuf, Failure> {
    match env::var_os("XDG_STATE_HOME").map(PathBuf::from) {
        Some(dir) if dir.is_absolute() => Ok(dir),
        _ => Ok(home()?.join(".local").join("state")),
    }
}

fn user_kubeconfig() -> Result<PathBuf, Failure> {
    let listed = env::var_os("KUBECONFIG")
        .and_then(|list| env::split_paths(&list).find(|path| !path.as_os_str().is_empty()));
    match listed {
        Some(path) => Ok(path),
        None => Ok(home()?.join(".kube").join("config")),
    }
}

/// The cluster a kubeconfig leads to.
pub(crate) struct Cluster<'a> {
    /// Name of cluster, user and context.
    pub(crate) name: &'a str,
    /// `https://127.0.0.1:6443`.
    pub(crate) server: &'a str,
    /// The CA and the administrator's certificate.
    pub(crate) certs: &'a Certs,
}

/// Writes or merges the kubeconfig.
pub(crate) fn write(target: &Target, cluster: &Cluster<'_>) -> Result<(), Failure> {
    let config = match target {
        Target::Usual(_) | Target::File(_) => fresh(cluster),
        Target::Merge(path) => merged(read(path)?, cluster),
    };
    let text = serde_saphyr::to_string(&config).map_err(|error| {
        Failure::run(format!("the kubeconfig cannot be written as YAML: {error}"))
    })?;
    let path = target.path();
    write_private(path, text.as_bytes()).map_err(|error| {
        Failure::input(format!(
            "kubeconfig {} cannot be written: {}",
            path.display(),
            file_error(&error)
        ))
        .hint("name a file that you may write: --kubeconfig PATH")
    })
}

fn read(path: &Path) -> Result<Value, Failure> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(json!({})),
        Err(error) => {
            return Err(Failure::input(format!(
                "kubeconfig {} cannot be read: {}",
                path.display(),
                file_error(&error)
            ))
            .hint("mend the file, or leave --merge out"));
        }
    };
    let parsed: Value = if text.trim().is_empty() {
        json!({})
    } else {
        parse(path, &text)?
    };
    match &parsed {
        Value::Null => Ok(json!({})),
        Value::Object(config) => match unfit(config) {
            Some(why) => Err(not_a_kubeconfig(path, &why)),
            None => Ok(parsed),
        },
        _ => Err(not_a_kubeconfig(path, "it is not a map")),
    }
}

/// Why a map is no kubeconfig.
fn unfit(config: &serde_json::Map<String, Value>) -> Option<String> {
    let kind = config.get("kind").and_then(Value::as_str);
    if let Some(kind) = kind.filter(|kind| *kind != "Config") {
        return Some(format!("its kind is {kind}"));
    }
    let lists = ["clusters", "users", "contexts"].into_iter();
    let mut wrong = lists.filter(|list| {
        config
            .get(*list)
            .is_some_and(|value| !value.is_array() && !value.is_null())
    });
    wrong.next().map(|list| format!("its {list} are no list"))
}

fn parse(path: &Path, text: &str) -> Result<Value, Failure> {
    serde_saphyr::from_str(text).map_err(|error| not_a_kubeconfig(path, &first_line(&error)))
}

fn not_a_kubeconfig(path: &Path, why: &str) -> Failure {
    Failure::input(format!(
        "{} is no kubeconfig, so no context is added to it: {why}",
        path.display()
    ))
    .hint("mend the file, or leave --merge out")
}

/// A kubeconfig that leads nowhere else.
pub(crate) fn fresh(cluster: &Cluster<'_>) -> Value {
    let mut config = merged(json!({}), cluster);
    config["current-context"] = cluster.name.into();
    config
}

/// Replaces the entries of our name and keeps everything else; the current context stays the user's unless there is none.
fn merged(mut config: Value, cluster: &Cluster<'_>) -> Value {
    let encode = |pem: &str| STANDARD.encode(pem);
    let entries = [
        (
            "clusters",
            "cluster",
            json!({ "server": cluster.server, "certificate-authority-data": encode(&cluster.certs.ca) }),
        ),
        (
            "users",
            "user",
            json!({
                "client-certificate-data": encode(&cluster.certs.admin.cert),
                "client-key-data": encode(&cluster.certs.admin.key),
            }),
        ),
        (
            "contexts",
            "context",
            json!({ "cluster": cluster.name, "user": cluster.name }),
        ),
    ];
    for (list, key, value) in entries {
        let mut items = match config[list].take() {
            Value::Array(items) => items,
            _ => Vec::new(),
        };
        items.retain(|item| item["name"] != cluster.name);
        items.push(json!({ "name": cluster.name, key: value }));
        config[list] = items.into();
    }
    config["apiVersion"] = "v1".into();
    config["kind"] = "Config".into();
    if config["current-context"].as_str().is_none_or(str::is_empty) {
        config["current-context"] = cluster.name.into();
    }
    config
}

/// Writes a file that only its owner may read, in one step for whoever reads it meanwhile; through a symbolic link, as kubectl does.
fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    let path = &led_to(path);
    let dir = path
        .parent()
        .filter(|dir| !dir.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    fs::create_dir_all(dir)?;
    if path.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "it names no file"))?;
    let mut temporary = name.to_owned();
    temporary.push(format!(".{}", std::process::id()));
    let temporary = dir.join(temporary);
    let written = create_private(&temporary)
        .and_then(|mut file| io::Write::write_all(&mut file, content))
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The temporary file may not exist; either way the write's own error is the one to tell.
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Where a path leads through symbolic links, also to a file that is not there yet.
fn led_to(path: &Path) -> PathBuf {
    /// As many links lead from one to the next (Linux: MAXSYMLINKS).
    const LINKS: usize = 40;
    if let Ok(path) = fs::canonicalize(path) {
        return path;
    }
    let mut path = path.to_owned();
    for _ in 0..LINKS {
        let Ok(next) = fs::read_link(&path) else {
            break;
        };
        path = path.parent().unwrap_or(Path::new("")).join(next);
    }
    path
}

fn create_private(path: &Path) -> io::Result<fs::File> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn certs() -> Certs {
        Certs::generate(
            jiff::Timestamp::from_second(1_790_000_000).expect("a valid time"),
            Ipv4Addr::LOCALHOST,
        )
        .expect("certificates can be made")
    }

    #[test]
    fn a_merge_keeps_the_users_other_contexts_and_their_choice() {
        let certs = certs();
        let cluster = Cluster {
            name: "mullion",
            server: "https://127.0.0.1:6443",
            certs: &certs,
        };
        let mine = json!({
            "current-context": "work", "preferences": {"colors": true},
            "contexts": [{"name": "work", "context": {"cluster": "w"}}, {"name": "mullion", "context": {"cluster": "old"}}],
        });
        let config = merged(mine, &cluster);
        assert_eq!(config["current-context"], "work");
        assert_eq!(config["preferences"]["colors"], true);
        let names: Vec<&str> = config["contexts"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|c| c["name"].as_str())
            .collect();
        assert_eq!(names, ["work", "mullion"]);
        assert_eq!(config["contexts"][1]["context"]["cluster"], "mullion");
    }

    #[cfg(unix)]
    #[test]
    fn the_file_is_private_and_replaced_whole() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a").join("kubeconfig");
        let certs = certs();
        let cluster = Cluster {
            name: "mullion",
            server: "https://127.0.0.1:6443",
            certs: &certs,
        };
        write(&Target::File(path.clone()), &cluster).expect("the file can be written");
        write(&Target::Merge(path.clone()), &cluster).expect("the file can be merged into");
        assert_eq!(
            fs::metadata(&path).expect("it exists").permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(
            fs::read_dir(path.parent().expect("it has one"))
                .expect("readable")
                .count(),
            1
        );
        let read: Value =
            serde_saphyr::from_str(&fs::read_to_string(&path).expect("readable")).expect("YAML");
        assert_eq!(read["clusters"].as_array().map(Vec::len), Some(1));
    }

    #[test]
    fn a_file_that_is_no_kubeconfig_is_left_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("config");
        fs::write(&path, "- just\n- a list\n").expect("writable");
        let certs = certs();
        let cluster = Cluster {
            name: "mullion",
            server: "https://127.0.0.1:6443",
            certs: &certs,
        };
        let failure =
            write(&Target::Merge(path.clone()), &cluster).expect_err("a list is no kubeconfig");
        assert_eq!(failure.code(), 2);
        assert_eq!(
            fs::read_to_string(&path).expect("readable"),
            "- just\n- a list\n"
        );
    }

    #[test]
    fn a_manifest_or_a_wrong_list_is_no_kubeconfig() {
        let map = |value: Value| value.as_object().cloned().expect("a map");
        assert_eq!(
            unfit(&map(json!({"kind": "Pod"}))),
            Some("its kind is Pod".into())
        );
        assert_eq!(
            unfit(&map(json!({"contexts": "foo"}))),
            Some("its contexts are no list".into())
        );
        assert_eq!(unfit(&map(json!({"kind": "Config", "users": null}))), None);
    }

    #[cfg(unix)]
    #[test]
    fn a_symbolic_link_is_written_through() {
        let dir = tempfile::tempdir().expect("a directory");
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        fs::write(&real, "kind: Config\n").expect("writable");
        std::os::unix::fs::symlink(&real, &link).expect("a link can be made");
        let certs = certs();
        let cluster = Cluster {
            name: "mullion",
            server: "https://127.0.0.1:6443",
            certs: &certs,
        };
        write(&Target::Merge(link.clone()), &cluster).expect("the file can be merged into");
        assert!(link.is_symlink());
        let written =
            |path: &Path| fs::read_to_string(path).is_ok_and(|text| text.contains("mullion"));
        assert!(written(&real));
        // Also to a file that is not there yet, from link to link.
        let (first, second) = (dir.path().join("first"), dir.path().join("second"));
        std::os::unix::fs::symlink("second", &first).expect("a link can be made");
        std::os::unix::fs::symlink("below/new", &second).expect("a link can be made");
        for target in [Target::File(first.clone()), Target::Merge(first.clone())] {
            write(&target, &cluster).expect("the file can be written");
            assert!(first.is_symlink() && second.is_symlink());
            assert!(written(&dir.path().join("below/new")));
        }
    }

    #[test]
    fn the_kubeconfig_of_another_running_cluster_is_left_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("kubeconfig");
        let other = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let server = format!("https://{}", other.local_addr().expect("an address"));
        let certs = certs();
        let cluster = Cluster {
            name: "mullion",
            server: &server,
            certs: &certs,
        };
        write(&Target::Usual(path.clone()), &cluster).expect("the file can be written");
        let beside = Target::Usual(dir.path().join("kubeconfig-7"));
        assert_eq!(Target::Usual(path.clone()).free(7), beside);
        drop(other);
        assert_eq!(Target::Usual(path.clone()).free(7), Target::Usual(path));
    }
}
