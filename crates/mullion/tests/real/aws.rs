//! Nodes from AWS through its SDK: `mullion controller --cloud aws` beside Kubernetes' own programs, against the simulated account of
//! `mullion nodes --aws-port`, whose instances are asked for over the wire, too.

use std::{
    collections::BTreeSet,
    io::{Read, Write},
    net::TcpStream,
};

use serde_json::{Value, json};

use crate::{
    KINDS, available, bought_pool,
    cluster::Cluster,
    deployment,
    installed::{
        Site, aws_variables, clients, each_part,
        process::{Process, free_port},
        story,
    },
    of_pods, of_release, start_nodes_with, windows_pool,
};

/// The simulated account.
struct Account {
    port: u16,
}

impl Account {
    /// Sends a request and returns the body of the answer; it must succeed.
    #[track_caller]
    fn post(&self, path: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        let length = body.len();
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: any\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
        body.to_owned()
    }

    /// Changes what goes wrong.
    #[track_caller]
    fn fault(&self, change: &Value) {
        self.post("/mullion/faults", &change.to_string());
    }

    /// The ids of the instances that were bought for NodePools and are not on their way out.
    #[track_caller]
    fn instances(&self) -> BTreeSet<String> {
        let query = [
            "Action=DescribeInstances&Version=2016-11-15",
            "Filter.1.Name=tag-key&Filter.1.Value.1=karpenter.sh/nodepool",
            "Filter.2.Name=instance-state-name&Filter.2.Value.1=pending&Filter.2.Value.2=running",
        ];
        let xml = self.post("/", &query.join("&"));
        let parts = xml.split("<instanceId>").skip(1);
        let ids = parts.filter_map(|part| part.split_once('<'));
        ids.map(|(id, _)| id.to_owned()).collect()
    }
}

/// The ids of the instances of all NodeClaims, or of those of one pool.
fn claimed(cluster: &Cluster, pool: Option<&str>) -> BTreeSet<String> {
    let path = "jsonpath={.items[*].status.providerID}";
    let selector = pool.map(|pool| format!("karpenter.sh/nodepool={pool}"));
    let selector: Vec<_> = selector.iter().flat_map(|own| ["-l", own]).collect();
    let ids = cluster.get(&[&["get", "nodeclaims", "-o", path], &selector[..]].concat());
    let ids = ids.split_whitespace();
    ids.map(|id| id.rsplit('/').next().unwrap_or(id).to_owned())
        .collect()
}

fn start_controller(cluster: &Cluster, aws: &Account, name: &str) -> Process {
    cluster.mullion_with(
        name,
        &[
            "controller",
            "--only=provisioner,disruption,ipam",
            "--cloud=aws",
            "--cluster-name=mixed",
            "--interruption-queue=mixed",
            "--health-probe-port=0",
            "--metrics-port=0",
        ],
        &aws_variables(aws.port),
    )
}

#[test]
fn nodes_of_aws_are_bought_lost_to_an_interruption_and_given_back() {
    let mut cluster = Cluster::start();
    cluster.run_controller_manager();
    cluster.run_scheduler();
    cluster.get(&["apply", "-f", KINDS]);
    let aws = Account { port: free_port() };
    let port = format!("--aws-port={}", aws.port);
    let _nodes = start_nodes_with(&cluster, &["--ipam=off", &port]);
    aws.fault(&json!({"throttle": {"ec2:CreateFleet": 2, "ssm:GetParameter": 1, "ec2:DescribeInstances": 1}}));
    let mut controller = start_controller(&cluster, &aws, "controller");
    controller.says("this process leads");
    let windows = ["windows2022", "windows2019"];
    let pools = windows.map(|name| windows_pool(name, &format!("{name}@latest")));
    let linux = bought_pool("linux", "al2023@latest", "linux", "spot");
    for object in pools.iter().flatten().chain(&linux) {
        cluster.apply(object);
    }
    let iis = "mcr.microsoft.com/windows/servercore/iis:windowsservercore-ltsc";
    let web = json!({
        "nodeSelector": {"karpenter.sh/nodepool": "linux"},
        "containers": [{
            "name": "a", "image": "nginx:1.27",
            "resources": {"requests": {"cpu": "500m", "memory": "500Mi"}},
        }],
    });
    cluster.apply(&deployment(
        "iis-2022",
        10,
        of_release("10.0.20348", &format!("{iis}2022")),
    ));
    cluster.apply(&deployment(
        "iis-2019",
        10,
        of_release("10.0.17763", &format!("{iis}2019")),
    ));
    cluster.apply(&deployment("web", 10, web));
    let apps = ["iis-2022", "iis-2019", "web"];
    cluster.until("all pods are available", || {
        assert!(!controller.has_ended(), "{}", controller.said());
        apps.iter().all(|app| available(&cluster, app) == "10")
    });
    // Each claim has one instance, and there is no other.
    let bought = claimed(&cluster, None);
    assert!(bought.len() >= 3, "{bought:?}");
    assert_eq!(aws.instances(), bought);
    let address = ".metadata.annotations.vpc\\.amazonaws\\.com/PrivateIPv4Address";
    let addresses = ["iis-2022", "iis-2019"].map(|app| of_pods(&cluster, app, address));
    let addresses = addresses.join(" ");
    let unique: BTreeSet<_> = addresses.split(' ').collect();
    assert_eq!(unique.len(), 20, "{addresses}");

    // The queue tells of the interruption two minutes ahead: the node is given up, and another one bought, before it comes.
    let spot = claimed(&cluster, Some("linux"));
    let lost = spot.first().expect("a spot instance");
    aws.fault(&json!({"cause": [{"fault": "spot-interruption", "target": lost}]}));
    cluster.until("the pods have moved before the machine ends", || {
        !claimed(&cluster, None).contains(lost)
            && !aws.instances().contains(lost)
            && available(&cluster, "web") == "10"
    });
    assert_eq!(aws.instances(), claimed(&cluster, None));

    let scale_in = ["--replicas=0"];
    cluster.get(&[&["scale", "deployment"], &apps[..], &scale_in].concat());
    cluster.until("all bought nodes are given back", || {
        cluster.get(&["get", "nodeclaims", "-o", "name"]).is_empty()
    });
    assert_eq!(aws.instances(), BTreeSet::new());
    let left = cluster.get(&["get", "nodes", "-o", "name"]);
    assert_eq!(left.lines().count(), 3, "{left}");
    let said = controller.said();
    assert_eq!(controller.terminate(), Some(0), "{said}");
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn who_follows_a_leader_that_died_while_it_bought_from_aws_leaves_no_instance_behind() {
    let mut cluster = Cluster::start();
    cluster.run_controller_manager();
    cluster.run_scheduler();
    cluster.get(&["apply", "-f", KINDS]);
    let aws = Account { port: free_port() };
    let port = format!("--aws-port={}", aws.port);
    let _nodes = start_nodes_with(&cluster, &["--ipam=off", &port]);
    // Ten fleets take five seconds.
    aws.fault(&json!({"rate": {"ec2:CreateFleet": 2}}));
    let mut first = start_controller(&cluster, &aws, "first");
    first.says("this process leads");
    let mut second = start_controller(&cluster, &aws, "second");
    second.says("this process waits");
    for object in bought_pool("linux", "al2023@latest", "linux", "on-demand") {
        cluster.apply(&object);
    }
    // Each pod wants a node of its own.
    let apart = json!([{"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "web"}}}]);
    let web = json!({
        "nodeSelector": {"karpenter.sh/nodepool": "linux"},
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": apart}},
        "containers": [{"name": "a", "image": "nginx:1.27"}],
    });
    cluster.apply(&deployment("web", 10, web));
    cluster.until("a machine is bought", || {
        assert!(!first.has_ended(), "{}", first.said());
        !aws.instances().is_empty()
    });
    drop(first);
    let already = aws.instances().len();
    assert!(already < 10, "the leader has bought all {already} machines");
    second.says("this process leads");
    cluster.until("all pods are available", || {
        assert!(!second.has_ended(), "{}", second.said());
        available(&cluster, "web") == "10"
    });
    assert_eq!(aws.instances(), claimed(&cluster, None));
    assert_eq!(aws.instances().len(), 10);
}

/// A cluster without nodes, and where the chart is installed for AWS.
fn site(cluster: &mut Cluster) -> Site {
    cluster.run_controller_manager();
    let helm = clients::installed().join("bin/helm-4");
    let mut site = Site::new(cluster.path("admin").into(), cluster.path("").into(), helm);
    site.aws_port = Some(free_port());
    site
}

#[test]
fn the_chart_s_roles_are_what_the_program_needs_on_aws_and_no_more() {
    let mut cluster = Cluster::start();
    story(&site(&mut cluster));
}

#[test]
fn each_part_alone_has_the_rights_that_it_needs_on_aws() {
    let mut cluster = Cluster::start();
    each_part(&site(&mut cluster));
}
