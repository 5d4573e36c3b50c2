//! What the program says before a cluster runs: help, versions, wrong input. Nothing here needs kubectl.

use std::{net::TcpListener, path::Path, process::Command};

use crate::{
    cluster::{PATIENCE, text},
    process::ended,
};

/// How a run of the program ended.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

fn mullion(args: &[&str]) -> Ended {
    mullion_with(args, "")
}

/// Runs the program with this on its stdin.
pub(crate) fn mullion_with(args: &[&str], stdin: &str) -> Ended {
    let state = tempfile::tempdir().expect("a temporary directory");
    let mut command = Command::new(env!("CARGO_BIN_EXE_mullion"));
    command
        .args(args)
        .env("XDG_STATE_HOME", state.path())
        .env_remove("KUBECONFIG")
        .env_remove("COLUMNS");
    let output = ended(&mut command, stdin, PATIENCE);
    Ended {
        code: output.status.code(),
        stdout: text(&output.stdout),
        stderr: text(&output.stderr),
    }
}

/// Runs `mullion up` with a config of this text.
fn up_with(config: &str) -> Ended {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("cluster.yaml");
    std::fs::write(&path, config).expect("a file can be written");
    let mut ended = mullion(&[
        "up",
        "--port",
        "0",
        "--config",
        path.to_str().expect("a UTF-8 path"),
    ]);
    ended.stderr = ended.stderr.replace(&*dir.path().to_string_lossy(), "DIR");
    ended
}

#[test]
fn help_names_every_command() {
    let ended = mullion(&["--help"]);
    assert_eq!(ended.code, Some(0));
    insta::assert_snapshot!(ended.stdout);
}

#[test]
fn help_fits_the_columns_of_the_terminal() {
    for command in [
        &[][..],
        &["up"],
        &["plan"],
        &["why"],
        &["fault"],
        &["check"],
        &["doctor"],
        &["controller"],
        &["nodes"],
        &["cloud"],
        &["apiserver"],
    ] {
        let mut help = std::process::Command::new(env!("CARGO_BIN_EXE_mullion"));
        help.args(command).arg("--help").env("COLUMNS", "80");
        let output = crate::process::ended(&mut help, "", crate::cluster::PATIENCE);
        let text = crate::cluster::text(&output.stdout);
        let long = text.lines().find(|line| line.chars().count() > 80);
        assert_eq!(long, None, "mullion {} --help", command.join(" "));
    }
}

#[test]
fn help_of_up_names_every_flag() {
    let ended = mullion(&["up", "--help"]);
    assert_eq!(ended.code, Some(0));
    insta::assert_snapshot!(ended.stdout);
}

#[test]
fn a_wrong_setting_of_traces_ends_the_start() {
    let endpoint = "--otlp-endpoint=http://collector:4318";
    for command in ["up", "controller"] {
        let ended = mullion(&[command, endpoint, "--otel-traces-sampler=often"]);
        assert_eq!(ended.code, Some(2));
        let why = "error: OTEL_TRACES_SAMPLER \"often\" is none of always_on";
        assert!(ended.stderr.starts_with(why), "{}", ended.stderr);
    }
}

#[test]
fn help_of_apiserver_names_every_flag() {
    let ended = mullion(&["apiserver", "--help"]);
    assert_eq!(ended.code, Some(0));
    insta::assert_snapshot!(ended.stdout);
}

#[test]
fn what_the_api_server_cannot_start_with_is_refused_in_a_sentence() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let tokens = dir.path().join("tokens.csv");
    std::fs::write(&tokens, "a,joe,1,\"g1\nb,root,2,\"system:masters\"\n").expect("writable");
    let tokens = tokens.to_str().expect("a UTF-8 path");
    let cases = [
        (
            "--service-cluster-ip-range",
            "10.96.0.0/16,fd00::/112",
            "--service-cluster-ip-range: \"10.96.0.0/16,fd00::/112\" names several ranges: one is taken, of one family\n".to_owned(),
        ),
        (
            "--disable-admission-plugins",
            "ServiceAccount,Foo",
            "--disable-admission-plugins: \"Foo\" is no admission plugin that can be left out; those are NamespaceLifecycle, ".to_owned(),
        ),
        (
            "--token-auth-file",
            tokens,
            format!(
                "{tokens}: the token file cannot be read: record on line 1; parse error on line 2, column 10: extraneous or missing \" in quoted-field\n"
            ),
        ),
    ];
    for (flag, value, why) in cases {
        let ended = mullion(&["apiserver", "--port", "0", flag, value]);
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        let begins = format!("error: {why}");
        assert!(ended.stderr.starts_with(&begins), "{}", ended.stderr);
        assert!(ended.stderr.contains("\nhint:  "), "{}", ended.stderr);
    }
}

#[test]
fn a_port_of_the_simulated_cloud_that_is_in_use_is_refused_as_that_of_a_cluster_is() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let said = format!(
        "error: port {port} on 127.0.0.1 cannot be taken: it is in use\nhint:  choose another one with --port N; --port 0 takes any free one\n"
    );
    for command in ["up", "cloud"] {
        let ended = mullion(&[command, "--port", &port]);
        assert_eq!((ended.code, &ended.stderr), (Some(2), &said));
    }
}

#[test]
fn the_version_is_that_of_the_package() {
    assert_eq!(
        mullion(&["--version"]).stdout.trim(),
        concat!("mullion ", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn completions_are_printed_for_a_shell() {
    let ended = mullion(&["completions", "bash"]);
    assert_eq!(ended.code, Some(0));
    assert!(ended.stdout.contains("_mullion"), "{}", ended.stdout);
}

#[test]
fn a_taken_port_is_named_with_a_way_out() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let ended = mullion(&["up", "--port", &port]);
    assert_eq!(ended.code, Some(2));
    assert_eq!(
        ended.stderr,
        format!(
            "error: port {port} on 127.0.0.1 cannot be taken: it is in use\nhint:  choose another one with --port N; --port 0 takes any free one\n"
        )
    );
    assert_eq!(ended.stdout, "");
}

#[test]
fn a_missing_config_is_named() {
    let ended = mullion(&["up", "--config", "/nowhere/cluster.yaml"]);
    assert_eq!(ended.code, Some(2));
    assert!(
        ended
            .stderr
            .starts_with("error: /nowhere/cluster.yaml cannot be read: there is no such file\n"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_malformed_config_is_refused_in_one_line() {
    let ended = up_with("kind: [ClusterConfig\n");
    assert_eq!(ended.code, Some(2));
    assert!(
        ended
            .stderr
            .starts_with("error: DIR/cluster.yaml: not a YAML document: "),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_file_that_is_no_config_is_named_with_a_way_out() {
    let cases = [
        ("", "the file is empty"),
        ("# nothing yet\n", "the file is empty"),
        (
            "hello\n",
            "the file is the text \"hello\", not a map of fields",
        ),
        (
            "apiVersion: v1\nkind: Pod\n",
            "it is a Pod, not a ClusterConfig",
        ),
        (
            "a: 1\n---\nb: 2\n",
            "the file holds 2 documents, a config is one",
        ),
    ];
    for (config, why) in cases {
        let ended = up_with(config);
        assert_eq!(ended.code, Some(2), "{config:?}");
        let lines: Vec<&str> = ended.stderr.lines().collect();
        assert_eq!(lines.len(), 2, "{}", ended.stderr);
        assert_eq!(lines[0], format!("error: DIR/cluster.yaml: {why}"));
        assert!(lines[1].starts_with("hint:  "), "{}", lines[1]);
        assert_eq!(ended.stdout, "");
    }
}

#[test]
fn a_directory_as_config_is_said_to_be_one() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().display().to_string();
    let ended = mullion(&["up", "--config", &path]);
    assert_eq!(ended.code, Some(2));
    let expected = format!("error: {path} cannot be read: it is a directory\nhint:  ");
    assert!(ended.stderr.starts_with(&expected), "{}", ended.stderr);
}

#[test]
fn a_benchmark_without_room_is_refused_before_it_begins() {
    let ended = mullion(&["bench", "up", "--nodes", "2", "--pods", "301"]);
    assert_eq!(ended.code, Some(2));
    assert_eq!(
        ended.stderr,
        "error: 301 pods have no room on 2 nodes: each takes 150\nhint:  --pods 300, or --nodes 3\n"
    );
}

#[test]
fn a_flag_that_a_benchmark_has_no_use_for_is_refused() {
    for (what, flag) in [("growth", "--nodes"), ("rollback", "--pods")] {
        let ended = mullion(&["bench", "engine", what, flag, "5"]);
        assert_eq!(ended.code, Some(2));
        let (start, end) = (
            format!("error: {what} is measured "),
            format!("{flag} has no say"),
        );
        let line = ended.stderr.lines().next().unwrap_or_default();
        assert!(line.starts_with(&start) && line.ends_with(&end), "{line}");
    }
}

#[test]
fn a_wrong_taint_is_refused_with_its_path_and_what_is_allowed() {
    let ended = up_with(
        "apiVersion: eksctl.io/v1alpha5\nkind: ClusterConfig\nmetadata: {name: a, region: us-west-2}\n\
         nodeGroups: [{name: w, amiFamily: WindowsServer2022CoreContainer, taints: {os: 'windows:NoShedule'}}]\n",
    );
    assert_eq!(ended.code, Some(2));
    assert!(
        ended.stderr.starts_with(
            "error: DIR/cluster.yaml: nodeGroups[0].taints.os: effect \"NoShedule\" is not one of NoSchedule, PreferNoSchedule, NoExecute\nhint:"
        ),
        "{}",
        ended.stderr
    );
}

#[test]
fn an_unknown_field_and_an_unknown_instance_type_are_refused_with_their_paths() {
    let head = "apiVersion: eksctl.io/v1alpha5\nkind: ClusterConfig\nmetadata: {name: a, region: us-west-2}\n";
    let ended = up_with(&format!(
        "{head}nodeGroups: [{{name: w, instancetype: m5.large}}]\n"
    ));
    assert_eq!(ended.code, Some(2));
    assert!(
        ended.stderr.contains("nodeGroups[0].instancetype"),
        "{}",
        ended.stderr
    );
    let ended = up_with(&format!(
        "{head}managedNodeGroups: [{{name: w, instanceType: m5.lage}}]\n"
    ));
    assert_eq!(ended.code, Some(2));
    assert!(
        ended
            .stderr
            .contains("managedNodeGroups[0].instanceType: \"m5.lage\" is not an EC2 instance type"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_kubeconfig_that_cannot_be_written_is_named() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("a-file");
    std::fs::write(&file, "x").expect("a file can be written");
    let below = file.join("kubeconfig");
    let ended = mullion(&[
        "up",
        "--port",
        "0",
        "--kubeconfig",
        below.to_str().expect("a UTF-8 path"),
    ]);
    assert_eq!(ended.code, Some(2));
    assert!(
        ended.stderr.starts_with(&format!(
            "error: kubeconfig {} cannot be written: ",
            below.display()
        )),
        "{}",
        ended.stderr
    );
    assert!(ended.stderr.contains("\nhint:  "), "{}", ended.stderr);
    assert!(!Path::new(&below).exists());
}

#[test]
fn a_wrong_speed_is_refused() {
    let ended = mullion(&["up", "--speed", "-3"]);
    assert_eq!(ended.code, Some(2));
    assert_eq!(
        ended.stderr,
        "error: invalid value '-3' for '--speed <N>': it must be a number above 0, or max\nhint:  `mullion up --help` says what can be given\n"
    );
}

#[test]
fn a_wrong_scheduler_configuration_is_refused_with_its_place_and_an_example() {
    let head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";
    let hint = "hint:  a KubeSchedulerConfiguration begins: {apiVersion: kubescheduler.config.k8s.io/v1, \
                kind: KubeSchedulerConfiguration, profiles: [...]}\n";
    let cases = [
        (
            "kind: Pod\n".to_owned(),
            "apiVersion: Unsupported value: null: supported values: \"kubescheduler.config.k8s.io/v1\"",
        ),
        (
            format!("{head}profiles: [{{plugin: {{}}}}]\n"),
            "profiles[0].plugin: unknown field, allowed here: schedulerName, percentageOfNodesToScore, plugins, pluginConfig",
        ),
        (
            format!("{head}profiles: [{{schedulerName: a}}, {{schedulerName: a}}]\n"),
            "profiles[1].schedulerName: Duplicate value: \"a\"",
        ),
        (
            format!("{head}extenders: [{{urlPrefix: 'http://localhost'}}]\n"),
            "extenders: Forbidden: extenders are not called by this scheduler",
        ),
        (
            format!("{head}---\n{head}"),
            "line 4: another document begins after `---`, but the file must be one",
        ),
    ];
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("scheduler.yaml");
    let path = path.to_str().expect("a UTF-8 path");
    for (text, why) in cases {
        std::fs::write(path, text).expect("a file can be written");
        let ended = mullion(&["up", "--port", "0", "--scheduler-config", path]);
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        assert_eq!(ended.stderr, format!("error: {path}: {why}\n{hint}"));
    }
    let ended = mullion(&["up", "--scheduler-config", "/nowhere/scheduler.yaml"]);
    assert_eq!(ended.code, Some(2));
    assert_eq!(
        ended.stderr,
        format!("error: /nowhere/scheduler.yaml cannot be read: there is no such file\n{hint}")
    );
}

#[test]
fn a_file_that_mullion_did_not_write_stays_whoever_is_asked_to_replace_it() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("config");
    let mine = "apiVersion: v1\nkind: Config\nusers: [{name: me, user: {token: secret}}]\n";
    std::fs::write(&path, mine).expect("a file can be written");
    let path = path.to_str().expect("a UTF-8 path");
    for command in ["up", "apiserver"] {
        for (target, why) in [
            (
                path,
                format!("{path} holds a user me that Mullion did not write, so it is not replaced"),
            ),
            (
                "/dev/full",
                "kubeconfig /dev/full cannot be written: it is a device, not a file".to_owned(),
            ),
        ] {
            let ended = mullion(&[command, "--port", "0", "--kubeconfig", target]);
            assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""));
            let said = format!("error: {why}\nhint:  ");
            assert!(ended.stderr.starts_with(&said), "{}", ended.stderr);
        }
    }
    assert_eq!(std::fs::read_to_string(path).expect("readable"), mine);
    let saved = mullion(&["snapshot", "save", "/dev/full"]);
    assert!(
        saved
            .stderr
            .starts_with("error: /dev/full cannot be written: it is a device, not a file\n"),
        "{}",
        saved.stderr
    );
}

#[test]
fn a_config_is_read_from_stdin() {
    let config = "apiVersion: eksctl.io/v1alpha5\nkind: ClusterConfig\nmetadata: {name: a, region: us-west-2, version: 1.30}\n";
    let ended = mullion_with(&["up", "--port", "0", "--config", "-"], config);
    assert_eq!(ended.code, Some(2));
    assert_eq!(
        ended.stderr,
        "error: stdin: metadata.version: the number 1.3 is not one of 1.23 to 1.36\n\
         hint:  version: \"1.30\", in quotes: without them 1.30 is the number 1.3\n"
    );
    let twice = mullion(&["up", "--config", "-", "--images", "-"]);
    assert_eq!(twice.code, Some(2));
    assert_eq!(
        twice.stderr,
        "error: --config and --images cannot all be read from stdin\nhint:  name a file for all of them but one\n"
    );
}

#[test]
fn capacity_that_the_cloud_does_not_have_cannot_run_out() {
    let cases = [
        (
            "c7a.medium/mars",
            "error: --insufficient-capacity c7a.medium/mars/*: \"mars\" is not one of the cluster's zones us-west-2a, us-west-2b, us-west-2c\n\
             hint:  --insufficient-capacity '*/us-west-2a'\n",
        ),
        (
            "*/us-west-2a/dedicated",
            "error: --insufficient-capacity */us-west-2a/dedicated: \"*/us-west-2a/dedicated\" is not of the form type, type/zone or \
             type/zone/capacity-type, each part of which may be *, with on-demand, spot or reserved as the last\n\
             hint:  --insufficient-capacity c6a.xlarge, or '*/us-west-2a/spot'\n",
        ),
        (
            "z1d.tiny",
            "error: --insufficient-capacity z1d.tiny: \"z1d.tiny\" is not an EC2 instance type\nhint:  one of z1d.",
        ),
    ];
    for (pattern, said) in cases {
        let ended = mullion(&["up", "--port", "0", "--insufficient-capacity", pattern]);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""));
        assert!(ended.stderr.starts_with(said), "{}", ended.stderr);
    }
}

#[test]
fn subnets_for_which_the_vpc_has_no_room_are_refused_with_the_largest_that_fit() {
    let ended = mullion(&["up", "--port", "0", "--subnet-size", "/17"]);
    assert_eq!(ended.code, Some(2));
    assert_eq!(
        ended.stderr,
        "error: --subnet-size /17: the VPC 10.0.0.0/16 has no room for 3 subnets of that size\n\
         hint:  --subnet-size /18, or smaller, down to /28\n"
    );
}

#[test]
fn a_label_that_nodes_have_by_themselves_is_refused_with_what_they_have() {
    let ended = up_with(
        "apiVersion: eksctl.io/v1alpha5\nkind: ClusterConfig\nmetadata: {name: a, region: us-west-2}\n\
         nodeGroups: [{name: l, labels: {kubernetes.io/os: windows}}]\n",
    );
    assert_eq!(ended.code, Some(2));
    assert_eq!(
        ended.stderr,
        "error: DIR/cluster.yaml: nodeGroups[0].labels.kubernetes.io/os: \"windows\" is not what the nodes of this group have: linux\n\
         hint:  leave kubernetes.io/os out, every node has it by itself\n"
    );
}

#[test]
fn a_directory_of_somebody_elses_is_left_as_it_is() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let photos = dir.path().join("photos");
    std::fs::create_dir_all(photos.join("2026")).expect("a directory");
    std::fs::write(photos.join("cat.jpg"), "meow").expect("a file can be written");
    let path = photos.to_str().expect("a UTF-8 path");
    let up = ["up", "--port", "0", "--data-dir", path];
    let cases: [&[&str]; 4] = [
        &up,
        &[&up[..], &["--fresh"]].concat(),
        &["apiserver", "--port", "0", "--data-dir", path],
        &[
            "snapshot",
            "restore",
            "/nowhere",
            "--force",
            "--data-dir",
            path,
        ],
    ];
    for args in cases {
        let ended = mullion(args);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""));
        assert_eq!(
            ended.stderr,
            format!(
                "error: {path} holds 2026 and no cluster, so none is kept there\nhint:  choose a directory that is new or empty: --data-dir DIR\n"
            )
        );
    }
    let left = std::fs::read_dir(&photos).expect("readable");
    let mut left: Vec<_> = left
        .map(|entry| entry.expect("readable").file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["2026", "cat.jpg"]);
}
