//! `kubectl exec`, `attach`, `cp`, `port-forward` and `proxy`, with every kubectl at hand: over SPDY in the older ones, WebSockets in the
//! newer. Nothing runs in simulated containers, and each kubectl says so in one sentence.

use std::{
    io::{ErrorKind, Read, Write},
    net::TcpStream,
};

use crate::{
    cluster::{Cluster, PATIENCE, text},
    kubectl::kubectls,
};

const PODS: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: linux}
spec:
  containers:
  - {name: web, image: 'nginx:1.26'}
  - {name: side, image: 'nginx:1.26'}
---
apiVersion: v1
kind: Pod
metadata: {name: windows}
spec:
  nodeSelector: {kubernetes.io/os: windows}
  tolerations: [{operator: Exists}]
  containers:
  - {name: iis, image: 'mcr.microsoft.com/windows/servercore/iis'}
";

const NO_COMMAND: &str =
    "error: container \"web\" of pod \"linux\" is simulated: no command can run in it\n";

const NO_PROCESS: &str =
    "error: container \"side\" of pod \"linux\" is simulated: it has no process to attach to\n";

fn with_pods() -> Cluster {
    let cluster = Cluster::start(&[
        "--config",
        "eksctl-windows-nodegroup.yaml",
        "--speed",
        "max",
    ]);
    cluster.apply(PODS);
    for pod in ["pod/linux", "pod/windows"] {
        cluster.kubectl(&["wait", pod, "--for=condition=Ready", "--timeout=120s"]);
    }
    cluster
}

#[test]
fn every_kubectl_says_that_no_command_can_run() {
    let cluster = with_pods();
    let file = cluster.kubeconfig();
    let file = file
        .to_str()
        .expect("temporary directories have plain names");
    for program in kubectls() {
        let refused = |args: &[&str], stdin: &str| {
            let output = cluster.run(&program, args, stdin);
            assert!(!output.status.success(), "{program} {}", args.join(" "));
            without_unsent_input(&text(&output.stderr))
        };
        let ls = ["exec", "linux", "-c", "web", "--", "ls"];
        assert_eq!(refused(&ls, ""), NO_COMMAND, "{program}");
        // More input than is on its way at a time.
        let cat = ["exec", "linux", "-c", "web", "-i", "--", "cat"];
        assert_eq!(refused(&cat, &"x".repeat(1 << 20)), NO_COMMAND, "{program}");
        assert_eq!(
            refused(&["exec", "windows", "--", "cmd", "/c", "dir"], ""),
            NO_COMMAND.replace("web", "iis").replace("linux", "windows"),
            "{program}"
        );
        // Some say first how to get a prompt.
        let attached = refused(&["attach", "linux", "-c", "side"], "");
        assert!(attached.ends_with(NO_PROCESS), "{program}: {attached}");
        for args in [
            ["cp", file, "linux:/tmp/x", "-c", "web"],
            ["cp", "linux:/tmp/x", "copied", "-c", "web"],
        ] {
            assert_eq!(
                refused(&args, ""),
                NO_COMMAND,
                "{program} {}",
                args.join(" ")
            );
        }
        let nobody = refused(&["exec", "linux", "-c", "none", "--", "ls"], "");
        assert!(
            nobody.contains("container none is not valid for pod linux")
                || nobody.contains("container none not found in pod linux"),
            "{program}: {nobody}"
        );
    }
}

/// What kubectl says, without its log lines about input that it still copied when it closed the connection over the refusal. Two threads of the older kubectls
/// race there, beside every server that refuses before it has read all input: "E1130 01:02:40.908818   23920 v2.go:104] EOF".
fn without_unsent_input(said: &str) -> String {
    let unsent = |line: &str| {
        line.starts_with('E') && line.contains(" v2.go:") && line.trim_end().ends_with("] EOF")
    };
    said.split_inclusive('\n')
        .filter(|line| !unsent(line))
        .collect()
}

#[test]
fn every_kubectl_forwards_ports_and_is_a_proxy() {
    let cluster = with_pods();
    for program in kubectls() {
        forwarded(&cluster, &program, &[]);

        let proxy = cluster.spawn(&program, &["proxy", "--port=0", "--address=127.0.0.1"]);
        let said = proxy.says("Starting to serve on ");
        let (_, address) = said.rsplit_once(' ').expect("it names the address");
        let server = format!("--server=http://{address}");
        // Whoever asks through it needs to know nothing.
        let through = ["--kubeconfig=/dev/null", &server];
        let get = [&through[..], &["get", "pods", "-o", "name"]].concat();
        let pods = cluster.run(&program, &get, "");
        assert_eq!(
            (text(&pods.stdout).as_str(), text(&pods.stderr).as_str()),
            ("pod/linux\npod/windows\n", ""),
            "{program}"
        );
        forwarded(&cluster, &program, &through);
    }
}

/// Forwards a port, connects to it, and hears what kubectl says then.
fn forwarded(cluster: &Cluster, program: &str, server: &[&str]) {
    let args = ["port-forward", "pod/linux", ":80", "--address=127.0.0.1"];
    let forward = cluster.spawn(program, &[server, &args].concat());
    // "Forwarding from 127.0.0.1:40123 -> 80"
    let said = forward.says(" -> 80");
    let port = said
        .split(" -> ")
        .next()
        .and_then(|from| from.rsplit(':').next())
        .and_then(|port| port.parse::<u16>().ok())
        .unwrap_or_else(|| panic!("{program}: {said}"));
    let mut connection = TcpStream::connect(("127.0.0.1", port)).expect("kubectl listens");
    connection
        .set_read_timeout(Some(PATIENCE))
        .expect("a time is taken");
    // The other end may be closed already.
    let _ = connection.write_all(b"GET / HTTP/1.0\r\n\r\n");
    let mut answer = Vec::new();
    let end = connection.read_to_end(&mut answer);
    let too_late =
        end.is_err_and(|error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut));
    assert!(!too_late, "{program} does not close the connection");
    assert_eq!(text(&answer), "", "{program}");
    forward.complains("is simulated: nothing listens on its port 80");
}
