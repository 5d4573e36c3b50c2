//! `mullion fault`: what goes wrong on request, and ends on request.

use crate::cluster::{Cluster, text};

const POOL: &str = "\
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: spot}
spec:
  template:
    metadata: {labels: {team: spot}}
    spec:
      expireAfter: Never
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: linux}
      requirements:
      - {key: karpenter.sh/capacity-type, operator: In, values: [spot]}
      - {key: node.kubernetes.io/instance-type, operator: In, values: [m5.large, m5a.large]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      nodeSelector: {team: spot}
      containers: [{name: web, image: nginx:1.26}]
";

/// Runs `mullion fault` and returns its exit code, stdout and stderr.
fn fault(cluster: &Cluster, args: &[&str]) -> (Option<i32>, String, String) {
    let kubeconfig = cluster.kubeconfig();
    let mut all = vec!["fault", "--kubeconfig"];
    all.push(kubeconfig.to_str().expect("a path"));
    all.extend(args);
    let output = cluster.mullion(&all);
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

fn done(cluster: &Cluster, args: &[&str]) -> String {
    let (code, stdout, stderr) = fault(cluster, args);
    assert_eq!(
        code,
        Some(0),
        "mullion fault {}:\n{stdout}{stderr}",
        args.join(" ")
    );
    stdout
}

#[test]
fn a_spot_interruption_is_caused_seen_and_survived() {
    let cluster = Cluster::start(&["--speed", "100"]);
    assert_eq!(
        done(&cluster, &[]),
        "No fault is in force. `mullion fault --help` says which can be caused.\n"
    );
    cluster.apply(POOL);
    cluster.kubectl(&["rollout", "status", "deployment/web", "--timeout=110s"]);
    let nodes = ["get", "nodes", "-l", "team=spot", "-o", "name"];
    let old = cluster.kubectl(&nodes);
    let name = old.trim().trim_start_matches("node/");
    let said = done(&cluster, &["spot-interruption", name]);
    let (first, second) = said.split_once('\n').expect("two lines");
    assert!(
        first.starts_with("EC2 takes instance i-") && first.ends_with(" back in two minutes."),
        "{said}"
    );
    assert!(first.contains(&format!("of node {name} (spot ")), "{said}");
    let heal = format!("End it with: mullion fault spot-interruption {name} --heal\n");
    assert_eq!(second, heal);
    cluster.until("another node is there", &nodes, |nodes| {
        !nodes.trim().is_empty() && !nodes.contains(name)
    });
    cluster.kubectl(&["rollout", "status", "deployment/web", "--timeout=110s"]);
    let faults = ["get", "simulatedfaults", "-o", "name"];
    cluster.until("nothing is left to end", &faults, str::is_empty);
    let reasons = ["get", "events", "-A", "-o", "jsonpath={.items[*].reason}"];
    cluster.until("the events tell it", &reasons, |all| {
        all.contains("SpotInterrupted") && all.contains("TerminatingOnInterruption")
    });
}

#[test]
fn faults_are_listed_ended_and_refused_with_the_nearest_names() {
    let cluster = Cluster::start(&["--speed", "max"]);
    let said = done(&cluster, &["zone-outage", "us-west-2c"]);
    assert!(said.starts_with("us-west-2c is down: "), "{said}");
    done(&cluster, &["capacity", "m5.large/*/spot"]);
    let again = done(&cluster, &["zone-outage", "us-west-2c"]);
    assert!(
        again.starts_with("It is in force already. us-west-2c is down: "),
        "{again}"
    );
    let listed = done(&cluster, &[]);
    for row in [
        "zone-outage   us-west-2c ",
        "capacity      m5.large/*/spot ",
    ] {
        assert!(listed.contains(row), "{listed}");
    }
    let shown = cluster.kubectl(&["get", "simulatedfaults"]);
    assert!(shown.contains("InForce"), "{shown}");
    let healed = done(&cluster, &["zone-outage", "us-west-2c", "--heal"]);
    assert_eq!(
        healed,
        "us-west-2c is back: its instances start again, and others can be bought there, but not all:\n  \
         capacity m5.large/*/spot is in force: EC2 has no capacity for it\n"
    );
    let (code, _, stderr) = fault(&cluster, &["zone-outage", "us-west-2c", "--heal"]);
    assert_eq!(code, Some(1));
    assert!(
        stderr.starts_with("error: no zone-outage of us-west-2c is in force\n"),
        "{stderr}"
    );
    // The instance of a zone that came back can be lost again.
    let first = done(&cluster, &["zone-outage", "us-west-2a"]);
    assert!(first.contains(": 1 instance has stopped"), "{first}");
    done(&cluster, &["zone-outage", "us-west-2a", "--heal"]);
    let second = done(&cluster, &["zone-outage", "us-west-2a"]);
    assert_eq!(second, first);
    let (code, _, stderr) = fault(&cluster, &["zone-outage", "us-west-2z"]);
    assert_eq!(code, Some(2));
    assert_eq!(
        stderr,
        "error: us-west-2z is no zone of us-west-2\nhint:  one of us-west-2a, us-west-2b, us-west-2c\n"
    );
    for (args, message) in [
        (
            ["zone-outage", " "],
            "error: zone-outage: TARGET is empty\nhint:  it is a zone, such as us-west-2a\n",
        ),
        (
            ["capacity", "m5.larg"],
            "error: m5.larg is not an EC2 instance type\nhint:  the most alike are m5.large, ",
        ),
        (
            ["capacity", "m5.large/spot"],
            "error: spot is no zone of us-west-2\nhint:  one of us-west-2a, us-west-2b, us-west-2c\n",
        ),
        (
            ["new-image", "al2024"],
            "error: al2024 is no image alias or family\nhint:  one of al2, al2023, ",
        ),
        (
            ["crash", "nobody"],
            "error: nobody is no node, instance or NodeClaim\nhint:  such as ",
        ),
    ] {
        let (code, _, stderr) = fault(&cluster, &args);
        assert_eq!(code, Some(2));
        assert!(stderr.starts_with(message), "{stderr}");
    }
    // A zone's id means the zone.
    let said = done(&cluster, &["capacity", "*/usw2-az1"]);
    assert!(
        said.starts_with("EC2 has no capacity for */us-west-2"),
        "{said}"
    );
    // What kubectl makes is a fault too.
    cluster.apply(
        "apiVersion: cloud.mullion.dev/v1alpha1\nkind: SimulatedFault\nmetadata: {name: mine}\nspec: {fault: crash, target: nobody}\n",
    );
    let phase = [
        "get",
        "simulatedfault",
        "mine",
        "-o",
        "jsonpath={.status.phase}",
    ];
    cluster.until("it is refused", &phase, |phase| phase == "Refused");
    let listed = done(&cluster, &[]);
    assert!(
        listed.contains("refused: nobody is no node, instance or NodeClaim"),
        "{listed}"
    );
}

#[test]
fn a_cluster_that_is_gone_is_named_with_what_to_do() {
    let cluster = Cluster::start(&["--speed", "max"]);
    let kubeconfig = cluster.home().join("kept");
    std::fs::copy(cluster.kubeconfig(), &kubeconfig).expect("a file");
    let text_of = std::fs::read_to_string(&kubeconfig).expect("a file");
    let server = text_of
        .lines()
        .find_map(|line| line.trim().strip_prefix("server: "));
    let server = server.expect("a server").to_owned();
    // Nobody listens on port 9.
    let (_, port) = server.rsplit_once(':').expect("a port");
    let gone = server.replace(port, "9");
    std::fs::write(&kubeconfig, text_of.replace(&server, &gone)).expect("a file");
    let kubeconfig = kubeconfig.to_str().expect("a path");
    for args in [&["zone-outage", "us-west-2a"][..], &[]] {
        let output = cluster.mullion(&[&["fault", "--kubeconfig", kubeconfig], args].concat());
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(
            text(&output.stderr),
            format!(
                "error: {gone}: faults cannot be listed: Connection refused\n\
                 hint:  is the cluster running? `mullion up` says where its kubeconfig is\n"
            )
        );
    }
}

#[test]
fn offerings_of_the_flag_run_out_for_one_start_only() {
    let cluster = Cluster::start(&["--name", "kept", "--insufficient-capacity", "m5.large"]);
    let names = [
        "get",
        "simulatedfaults",
        "-o",
        "jsonpath={.items[*].status.names}",
    ];
    assert_eq!(cluster.kubectl(&names), r#"["m5.large/*/*"]"#);
    let again = ["--name", "kept", "--insufficient-capacity", "*/*/spot"];
    let cluster = cluster.kill_and_restart(&again);
    assert_eq!(cluster.kubectl(&names), r#"["*/*/spot"]"#);
    let cluster = cluster.kill_and_restart(&["--name", "kept"]);
    assert_eq!(cluster.kubectl(&names), "");
}

#[test]
fn a_proxy_of_the_environment_does_not_stand_between_commands_and_this_machine() {
    let cluster = Cluster::start(&["--speed", "max"]);
    let kubeconfig = cluster.kubeconfig();
    let kubeconfig = kubeconfig.to_str().expect("a path");
    // Nobody listens there.
    let proxies = [
        ("HTTPS_PROXY", "http://127.0.0.1:9"),
        ("https_proxy", "http://127.0.0.1:9"),
    ];
    for args in [
        &["status"][..],
        &["fault", "--kubeconfig", kubeconfig],
        &["plan", "--kubeconfig", kubeconfig],
    ] {
        let output = cluster.mullion_in(&proxies, args);
        let (said, wrong) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{args:?}: {said}{wrong}");
    }
}
