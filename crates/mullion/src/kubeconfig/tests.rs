//! Tests of the files that are written, the files that are not changed, and the entries that stay.

use std::{fs, net::Ipv4Addr, path::Path};

use super::*;

fn certs() -> Certs {
    Certs::generate(
        jiff::Timestamp::from_second(1_790_000_000).expect("a valid time"),
        Ipv4Addr::LOCALHOST,
    )
    .expect("certificates can be made")
}

fn cluster<'a>(name: &'a str, server: &'a str, certs: &'a Certs) -> Cluster<'a> {
    Cluster {
        name,
        server,
        directory: None,
        certs,
    }
}

fn read(path: &Path) -> Value {
    serde_saphyr::from_str(&fs::read_to_string(path).expect("readable")).expect("YAML")
}

/// A server without a listener.
const NOWHERE: &str = "https://127.0.0.1:1";

#[test]
fn a_merge_keeps_the_users_other_contexts_and_their_choice() {
    let certs = certs();
    let old = entries::merged(
        json!({}),
        &cluster("mullion", "https://127.0.0.1:2", &certs),
        true,
    );
    let mut mine = json!({
        "current-context": "work", "preferences": {"colors": true},
        "contexts": [{"name": "work", "context": {"cluster": "w"}}, old["contexts"][0]],
        "users": [{"name": "w", "user": {"token": "secret"}}],
    });
    mine["contexts"][1]["context"]["cluster"] = "old".into();
    let config = entries::merged(mine, &cluster("mullion", NOWHERE, &certs), true);
    assert_eq!(config["current-context"], "work");
    assert_eq!(config["preferences"]["colors"], true);
    assert_eq!(config["users"][0]["user"]["token"], "secret");
    let names: Vec<&str> = config["contexts"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|c| c["name"].as_str())
        .collect();
    assert_eq!(names, ["work", "mullion"]);
    assert_eq!(config["contexts"][1]["context"]["cluster"], "mullion");
}

#[test]
fn a_file_that_mullion_did_not_write_is_never_replaced() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("config");
    let certs = certs();
    let mine = "users: [{name: me, user: {token: secret}}]\n";
    let half = serde_saphyr::to_string(&entries::merged(
        serde_saphyr::from_str(mine).expect("YAML"),
        &cluster("mullion", NOWHERE, &certs),
        true,
    ))
    .expect("YAML");
    let own = for_cluster(&cluster("mullion", NOWHERE, &certs));
    let own = file::yaml(&own).expect("YAML");
    let commented = own.replace("kind: Config", "kind: Config # of the demo");
    let foreign = [
        (mine, "holds a user me that Mullion did not write"),
        (&half, "holds a user me that Mullion did not write"),
        (
            "preferences: {colors: true}\n",
            "holds preferences that Mullion did not write",
        ),
        ("a shopping list\n", "is no kubeconfig that Mullion wrote"),
        ("- just\n- a list\n", "is no kubeconfig that Mullion wrote"),
        ("kind: Pod\n", "is no kubeconfig that Mullion wrote"),
        (
            "# work: ask Ann for the token\n",
            "holds comments that Mullion did not write",
        ),
        (&commented, "holds comments that Mullion did not write"),
        (
            "kind: Config\nusers: []\n",
            "holds an empty kubeconfig that Mullion did not write",
        ),
        (
            "preferences: {}\n",
            "holds an empty kubeconfig that Mullion did not write",
        ),
    ];
    for (text, why) in foreign {
        fs::write(&path, text).expect("writable");
        let said = format!(
            "error: {} {why}, so it is not replaced\nhint:  name another file with --kubeconfig PATH, or add a context to yours with `mullion up --merge`",
            path.display()
        );
        let resolved = Target::resolve(Some(path.clone()), false, "mullion", false);
        let failure = resolved.expect_err("it is not Mullion's");
        assert_eq!((failure.code(), failure.to_string()), (2, said.clone()));
        let written = write(
            &Target::File(path.clone()),
            &cluster("mullion", NOWHERE, &certs),
        );
        assert_eq!(written.expect_err("nor now").to_string(), said);
        assert_eq!(fs::read_to_string(&path).expect("readable"), text);
        // The usual file is not used either, because it is not free.
        let beside = Target::Usual(directory.path().join("kubeconfig-7"));
        assert_eq!(Target::Usual(path.clone()).free(7), beside);
    }
    for empty in ["", "\n", &own] {
        fs::write(&path, empty).expect("writable");
        write(
            &Target::File(path.clone()),
            &cluster("mullion", NOWHERE, &certs),
        )
        .expect("nothing is lost");
    }
    write(
        &Target::File(path.clone()),
        &cluster("other", NOWHERE, &certs),
    )
    .expect("it is Mullion's");
    assert_eq!(read(&path)["contexts"][0]["name"], "other");
}

#[test]
fn an_entry_of_the_users_is_not_replaced_by_one_of_its_name() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("config");
    let certs = certs();
    let text = "contexts: [{name: work, context: {cluster: far, user: me}}]\n";
    fs::write(&path, text).expect("writable");
    let merge = Target::Merge(path.clone());
    let failure = write(&merge, &cluster("work", NOWHERE, &certs)).expect_err("it is the user's");
    assert_eq!(
        failure.to_string(),
        format!(
            "error: {} has a context work that Mullion did not write, so it is not replaced\nhint:  give the cluster another name: --name NAME",
            path.display()
        )
    );
    assert_eq!(fs::read_to_string(&path).expect("readable"), text);
    write(&merge, &cluster("play", NOWHERE, &certs)).expect("the name is free");
    write(&merge, &cluster("play", NOWHERE, &certs)).expect("it is Mullion's");
    assert_eq!(read(&path)["contexts"].as_array().map(Vec::len), Some(2));
}

#[cfg(unix)]
#[test]
fn the_file_is_private_and_replaced_whole() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a").join("kubeconfig");
    let certs = certs();
    let cluster = cluster("mullion", NOWHERE, &certs);
    write(&Target::File(path.clone()), &cluster).expect("the file can be written");
    write(&Target::Merge(path.clone()), &cluster).expect("the file can be merged into");
    let mode = || fs::metadata(&path).expect("it exists").permissions().mode() & 0o777;
    assert_eq!(mode(), 0o600);
    assert_eq!(
        fs::read_dir(path.parent().expect("it has one"))
            .expect("readable")
            .count(),
        1
    );
    assert_eq!(read(&path)["clusters"].as_array().map(Vec::len), Some(1));
    // The user's own file keeps its mode.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("its owner may");
    write(&Target::Merge(path.clone()), &cluster).expect("the file can be merged into");
    assert_eq!(mode(), 0o640);
}

#[test]
fn a_file_that_is_no_kubeconfig_is_not_merged_into() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("config");
    fs::write(&path, "- just\n- a list\n").expect("writable");
    let certs = certs();
    let failure = write(
        &Target::Merge(path.clone()),
        &cluster("mullion", NOWHERE, &certs),
    )
    .expect_err("a list is no kubeconfig");
    assert_eq!(failure.code(), 2);
    assert_eq!(
        fs::read_to_string(&path).expect("readable"),
        "- just\n- a list\n"
    );
}

#[cfg(unix)]
#[test]
fn a_symbolic_link_is_written_through() {
    let dir = tempfile::tempdir().expect("a directory");
    let (real, link) = (dir.path().join("real"), dir.path().join("link"));
    fs::write(&real, "kind: Config\n").expect("writable");
    std::os::unix::fs::symlink(&real, &link).expect("a link can be made");
    let certs = certs();
    let cluster = cluster("mullion", NOWHERE, &certs);
    write(&Target::Merge(link.clone()), &cluster).expect("the file can be merged into");
    assert!(link.is_symlink());
    let written = |path: &Path| fs::read_to_string(path).is_ok_and(|text| text.contains("mullion"));
    assert!(written(&real));
    // This also holds for a link to a link to a file that does not exist yet.
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
    let cluster = cluster("mullion", &server, &certs);
    write(&Target::Usual(path.clone()), &cluster).expect("the file can be written");
    let beside = Target::Usual(dir.path().join("kubeconfig-7"));
    assert_eq!(Target::Usual(path.clone()).free(7), beside);
    let said = |merge: bool| {
        let resolved = Target::resolve(Some(path.clone()), merge, "mullion", false);
        let failure = resolved.expect_err("it is in use");
        failure
            .to_string()
            .replace(&*dir.path().to_string_lossy(), "DIR")
    };
    let said = format!("{}\n{}", said(false), said(true)).replace(&server, "SERVER");
    insta::assert_snapshot!(said);
    // A kept cluster may be that cluster, which its directory tells later.
    Target::resolve(Some(path.clone()), false, "mullion", true).expect("it is asked later");
    // The cluster that wrote the entry may write it again.
    write(&Target::File(path.clone()), &cluster).expect("it is its own");
    drop(other);
    assert_eq!(
        Target::Usual(path.clone()).free(7),
        Target::Usual(path.clone())
    );
    Target::resolve(Some(path), false, "mullion", false).expect("the other one is gone");
}

#[test]
fn a_cluster_takes_only_its_own_entries_away() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("config");
    fs::write(&path, "users: [{name: me, user: {token: secret}}]\n").expect("writable");
    let certs = certs();
    let merge = Target::Merge(path.clone());
    let kept = Path::new("/clusters/demo");
    let demo = Cluster {
        directory: Some(kept),
        ..cluster("demo", NOWHERE, &certs)
    };
    write(&merge, &demo).expect("it can be merged into");
    write(&merge, &cluster("mullion", NOWHERE, &certs)).expect("it can be merged into");
    let other = mark(NOWHERE, Some(Path::new("/clusters/other")));
    assert_eq!(remove(&path, &other).expect("readable"), None);
    let own = mark(NOWHERE, Some(kept));
    assert_eq!(
        remove(&path, &own).expect("writable"),
        Some(Removed::Context)
    );
    assert_eq!(remove(&path, &own).expect("readable"), None);
    let left = read(&path);
    assert_eq!(left["current-context"], "");
    assert_eq!(left["users"][0]["user"]["token"], "secret");
    let names: Vec<_> = ["clusters", "users", "contexts"]
        .iter()
        .flat_map(|list| left[list].as_array().into_iter().flatten())
        .map(|item| item["name"].as_str().unwrap_or_default())
        .collect();
    assert_eq!(names, ["mullion", "me", "mullion", "mullion"]);
    // A file without any other content is removed.
    let alone = dir.path().join("alone");
    write(&Target::File(alone.clone()), &demo).expect("it can be written");
    assert_eq!(remove(&alone, &own).expect("writable"), Some(Removed::File));
    assert!(!alone.exists());
    assert_eq!(remove(&alone, &own).expect("it is gone"), None);
}

#[test]
fn of_several_files_a_context_is_added_where_kubectl_would_add_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let files = ["missing", "mine", "other"].map(|name| dir.path().join(name));
    let [missing, mine, other] = &files;
    // If no file exists, the last one is used.
    assert_eq!(to_merge_into(&files, "mullion"), *other);
    assert_eq!(to_merge_into(&files[..1], "mullion"), *missing);
    fs::write(other, "current-context: work\n").expect("writable");
    fs::write(mine, "kind: Config\n").expect("writable");
    assert_eq!(to_merge_into(&files, "mullion"), *mine);
    // The current context that the user chose is in another file.
    let read = read_others(mine, files.to_vec());
    assert_eq!(read.len(), 2);
    assert!(read.iter().any(|(_, config)| entries::has_current(config)));
    assert_eq!(
        read_others(&dir.path().join("unlisted"), files.to_vec()).len(),
        0
    );
    let certs = certs();
    let cluster = cluster("mullion", NOWHERE, &certs);
    let config = entries::merged(json!({}), &cluster, false);
    assert_eq!(config["current-context"], Value::Null);
    // An existing context is changed in the file that has it.
    write(&Target::Merge(other.clone()), &cluster).expect("it can be merged into");
    assert_eq!(to_merge_into(&files, "mullion"), *other);
    assert_eq!(to_merge_into(&files, "another"), *mine);
}

#[cfg(unix)]
#[test]
fn a_copy_of_a_kubeconfig_is_private_and_replaces_nothing_of_the_users() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("demo");
    let certs = certs();
    let config = for_cluster(&cluster("demo", NOWHERE, &certs));
    for _ in 0..2 {
        write_alone(&path, NOWHERE, &config).expect("it can be written");
    }
    let mode = fs::metadata(&path).expect("it exists").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    fs::write(&path, "users: [{name: me, user: {token: secret}}]\n").expect("writable");
    let refused = write_alone(&path, NOWHERE, &config).expect_err("it is the user's");
    assert_eq!(refused.code(), 2);
}
