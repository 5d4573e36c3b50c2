//! Pods that are run once: `kubectl run --restart=Never` comes back with the log and the exit code, and what waits for input goes on.

use crate::{
    cluster::{Cluster, text},
    kubectl::kubectls,
};

const LOG: &str = "Container once is simulated by Mullion: no process runs.";

#[test]
fn what_kubectl_runs_once_ends_with_a_log_and_an_exit_code() {
    let cluster = Cluster::start(&["--speed", "max"]);
    for program in kubectls() {
        let run = |name: &str, args: &[&str]| {
            let all = [
                &["run", name, "--image=busybox:1.36"][..],
                args,
                &["--", "date"],
            ];
            cluster.run(&program, &all.concat(), "")
        };
        for (name, policy) in [("once", "Never"), ("again", "OnFailure")] {
            let started = run(name, &[&format!("--restart={policy}")]);
            assert!(started.status.success(), "{}", text(&started.stderr));
            let done = "--for=jsonpath={.status.phase}=Succeeded";
            cluster.kubectl(&["wait", &format!("pod/{name}"), done, "--timeout=60s"]);
            let log = cluster.kubectl(&["logs", name]);
            assert!(log.contains("\n  args     date\n"), "{log}");
            cluster.kubectl(&["delete", "pod", name]);
        }
        let attached = run("once", &["--restart=Never", "--rm", "-i"]);
        let said = text(&attached.stdout);
        assert!(
            attached.status.success() && said.contains(LOG),
            "{program}: {said}{}",
            text(&attached.stderr)
        );
        let failing = run(
            "once",
            &[
                "--restart=Never",
                "--rm",
                "-i",
                "--annotations=mullion.dev/simulate-exit=3",
            ],
        );
        assert_eq!(failing.status.code(), Some(3), "{program}");
        assert_eq!(cluster.kubectl(&["get", "pods", "-o", "name"]), "");
    }
}

#[test]
fn a_debugging_pod_on_a_node_waits_for_whoever_attaches() {
    let cluster = Cluster::start(&["--speed", "max"]);
    let first = "jsonpath={.items[0].metadata.name}";
    let node = cluster.kubectl(&["get", "nodes", "-o", first]);
    let node = format!("node/{node}");
    let debug = ["debug", &node, "--image=busybox:1.36", "-i", "--", "sh"];
    let output = cluster.run("kubectl", &debug, "");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let pod = cluster.kubectl(&["get", "pods", "-o", first]);
    let running = "--for=jsonpath={.status.phase}=Running";
    cluster.kubectl(&["wait", &format!("pod/{pod}"), running, "--timeout=60s"]);
    let refused = cluster.refused(&["attach", &pod], "");
    assert!(
        refused.contains("it has no process to attach to"),
        "{refused}"
    );
    assert_eq!(
        cluster.kubectl(&["get", "pod", &pod, "-o", "jsonpath={.status.phase}"]),
        "Running"
    );
}
