//! The commands people type, with every kubectl at hand: the one on PATH, its siblings named kubectl.1.NN where it links to, and those
//! that `tests/clients/install` brings.

use std::path::PathBuf;

use crate::{
    clients,
    cluster::{Cluster, require_kubectl, text},
};

/// The kubectls at hand, the one on PATH first.
pub(crate) fn kubectls() -> Vec<String> {
    require_kubectl();
    let mut found = vec!["kubectl".to_owned()];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path)
        .map(|dir| dir.join("kubectl"))
        .find(|path| path.exists());
    let folder: Option<PathBuf> = on_path
        .and_then(|path| path.canonicalize().ok())
        .and_then(|path| path.parent().map(Into::into));
    let siblings = folder
        .and_then(|folder| folder.read_dir().ok())
        .into_iter()
        .flatten()
        .filter_map(Result::ok);
    found.extend(
        siblings
            .map(|entry| entry.path().display().to_string())
            .filter(|path| path.contains("/kubectl.1.")),
    );
    let installed = clients::kubectls().into_iter();
    found.extend(installed.map(|path| path.display().to_string()));
    found.sort();
    let mut versions = Vec::new();
    found.retain(|program| {
        let version = client_version(program);
        let new = !versions.contains(&version);
        versions.push(version);
        new
    });
    found
}

/// The minor release a kubectl is: the one on PATH is often one of its siblings too.
fn client_version(program: &str) -> String {
    let said = std::process::Command::new(program)
        .args(["version", "--client"])
        .output()
        .expect("kubectl can be run");
    let release = text(&said.stdout);
    let line = release.lines().next().unwrap_or_default();
    let (minor, _patch) = line.rsplit_once('.').unwrap_or((line, ""));
    minor.to_owned()
}

#[test]
fn every_kubectl_at_hand_can_do_what_people_do() {
    let cluster = Cluster::start(&[
        "--config",
        "eksctl-windows-nodegroup.yaml",
        "--speed",
        "max",
    ]);
    for (index, program) in kubectls().iter().enumerate() {
        session(&cluster, program, &format!("session-{index}"));
    }
}

fn session(cluster: &Cluster, program: &str, namespace: &str) {
    let run = |args: &[&str]| -> String {
        let output = cluster.run(program, args, "");
        assert!(
            output.status.success(),
            "{program} {}:\n{}{}{}",
            args.join(" "),
            text(&output.stdout),
            text(&output.stderr),
            cluster.stderr()
        );
        text(&output.stdout)
    };
    let with_input = |args: &[&str], input: &str| -> String {
        let output = cluster.run(program, args, input);
        assert!(
            output.status.success(),
            "{program} {}:\n{}{}",
            args.join(" "),
            text(&output.stdout),
            text(&output.stderr)
        );
        text(&output.stdout)
    };

    assert!(run(&["version"]).contains("v1.36"));
    run(&["create", "namespace", namespace]);
    run(&[
        "config",
        "set-context",
        "--current",
        "--namespace",
        namespace,
    ]);
    for args in [
        ["create", "configmap", "c", "--from-literal=a=b"].as_slice(),
        &["create", "secret", "generic", "s", "--from-literal=a=b"],
        &["create", "serviceaccount", "robot"],
        &["create", "service", "nodeport", "np", "--tcp=80"],
        &[
            "create",
            "poddisruptionbudget",
            "web",
            "--selector=app=web",
            "--min-available=1",
        ],
        &[
            "create",
            "deployment",
            "web",
            "--image=nginx:1.26",
            "--replicas=2",
        ],
        &["expose", "deployment", "web", "--port=80"],
    ] {
        run(args);
    }
    let status = ["rollout", "status", "deployment/web", "--timeout=60s"];
    run(&status);
    for args in [
        ["set", "image", "deployment/web", "nginx=nginx:1.27"].as_slice(),
        &["rollout", "pause", "deployment/web"],
        &["rollout", "resume", "deployment/web"],
        &["rollout", "restart", "deployment/web"],
    ] {
        run(args);
    }
    run(&status);
    assert!(run(&["rollout", "history", "deployment/web"]).contains("REVISION"));
    run(&["rollout", "undo", "deployment/web", "--to-revision=1"]);
    run(&["scale", "deployment/web", "--replicas=3"]);
    run(&status);
    assert_eq!(
        run(&[
            "get",
            "deployment",
            "web",
            "-o",
            "jsonpath={.spec.template.spec.containers[0].image}"
        ]),
        "nginx:1.26"
    );

    let manifest = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: applied}\ndata: {a: '1'}\n";
    assert!(with_input(&["apply", "-f", "-"], manifest).contains("created"));
    assert!(with_input(&["apply", "-f", "-"], manifest).contains("unchanged"));
    let changed = manifest.replace("'1'", "'2'");
    // diff answers 1 when there is a difference.
    let diff = cluster.run(program, &["diff", "-f", "-"], &changed);
    assert_eq!(
        diff.status.code(),
        Some(1),
        "{}{}",
        text(&diff.stdout),
        text(&diff.stderr)
    );
    assert!(
        text(&diff.stdout).contains("+  a: \"2\""),
        "{}",
        text(&diff.stdout)
    );
    assert!(with_input(&["apply", "-f", "-"], &changed).contains("configured"));
    with_input(&["replace", "-f", "-"], &manifest.replace("'1'", "'3'"));
    run(&[
        "patch",
        "configmap",
        "applied",
        "--type=json",
        "-p",
        r#"[{"op":"replace","path":"/data/a","value":"4"}]"#,
    ]);
    run(&[
        "patch",
        "configmap",
        "applied",
        "--type=merge",
        "-p",
        r#"{"data":{"b":"5"}}"#,
    ]);
    run(&[
        "patch",
        "deployment",
        "web",
        "-p",
        r#"{"spec":{"template":{"spec":{"containers":[{"name":"nginx","env":[{"name":"A","value":"1"}]}]}}}}"#,
    ]);
    run(&["label", "configmap", "applied", "tier=front"]);
    run(&["annotate", "configmap", "applied", "note=x"]);
    assert_eq!(
        run(&[
            "get",
            "configmap",
            "-l",
            "tier=front",
            "-o",
            "jsonpath={.items[*].data.a}"
        ]),
        "4"
    );
    run(&["edit", "configmap", "applied", "-o", "yaml"]);
    run(&status);

    for args in [
        ["get", "all"].as_slice(),
        &["get", "pods", "-o", "wide"],
        &["get", "pods", "-o", "yaml"],
        &["get", "pods", "-o", "name"],
        &["get", "pods", "-A", "--sort-by=.metadata.name"],
        &["get", "pods", "--chunk-size=1"],
        &[
            "get",
            "nodes",
            "-o",
            "custom-columns=NAME:.metadata.name,OS:.status.nodeInfo.operatingSystem",
        ],
        &[
            "get",
            "endpointslices,services,configmaps,secrets,serviceaccounts,replicasets,events,leases,poddisruptionbudgets",
        ],
        &["describe", "deployment", "web"],
        &["describe", "pods", "-l", "app=web"],
        &["describe", "nodes"],
        &["events"],
        &["api-resources"],
        &["api-versions"],
        &["explain", "deployment.spec.strategy.rollingUpdate"],
        &["explain", "nodepools.spec.disruption"],
        &["logs", "deployment/web"],
        &["logs", "-l", "app=web", "--tail=1"],
        &["logs", "deployment/web", "-c", "nginx", "--timestamps"],
        &["top", "nodes"],
        &[
            "top",
            "nodes",
            "-l",
            "kubernetes.io/os=linux",
            "--sort-by=cpu",
        ],
        &["top", "pods"],
        &["top", "pods", "-A", "--sum", "--sort-by=memory"],
        &["top", "pods", "-l", "app=web", "--containers"],
        &["get", "apiservices"],
        &["cluster-info"],
        &["get", "--raw", "/readyz?verbose"],
    ] {
        assert!(
            !run(args).is_empty(),
            "{program} {} printed nothing",
            args.join(" ")
        );
    }
    run(&[
        "get",
        "nodepools,nodeclaims,ec2nodeclasses,provisioners,awsnodetemplates",
    ]);
    autoscale(&run);
    let watched = cluster.run(program, &["get", "pods", "-w", "--request-timeout=1s"], "");
    assert!(
        text(&watched.stdout).contains("Running"),
        "{}",
        text(&watched.stdout)
    );

    let node = run(&[
        "get",
        "nodes",
        "-l",
        "kubernetes.io/os=linux",
        "-o",
        "jsonpath={.items[0].metadata.name}",
    ]);
    run(&["cordon", &node]);
    run(&["taint", "nodes", &node, "a=b:NoSchedule"]);
    run(&["taint", "nodes", &node, "a:NoSchedule-"]);
    run(&[
        "drain",
        &node,
        "--ignore-daemonsets",
        "--delete-emptydir-data",
        "--timeout=60s",
    ]);
    run(&["uncordon", &node]);
    run(&status);

    run(&[
        "wait",
        "deployment/web",
        "--for=condition=Available",
        "--timeout=30s",
    ]);
    run(&[
        "delete",
        "deployment",
        "web",
        "--cascade=foreground",
        "--timeout=60s",
    ]);
    assert_eq!(run(&["get", "pods", "-l", "app=web", "-o", "name"]), "");
    run(&[
        "config",
        "set-context",
        "--current",
        "--namespace",
        "default",
    ]);
    run(&["delete", "namespace", namespace, "--timeout=60s"]);
}

/// An autoscaler of three replicas that says what it does.
fn autoscale(run: &dyn Fn(&[&str]) -> String) {
    let bounds = ["--min=3", "--max=5", "--cpu-percent=80"];
    run(&[["autoscale", "deployment", "web"].as_slice(), &bounds].concat());
    let shown = run(&["get", "hpa", "web", "--no-headers"]);
    assert!(shown.contains("Deployment/web"), "{shown}");
    assert!(run(&["describe", "hpa", "web"]).contains("as a percentage of request"));
    run(&["delete", "hpa", "web"]);
    let services = run(&["get", "apiservices", "--no-headers"]);
    assert!(services.contains("v1.apps"), "{services}");
    // Whoever installs metrics-server creates its APIService.
    assert!(!services.contains("metrics.k8s.io"), "{services}");
}
