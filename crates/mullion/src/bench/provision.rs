//! `mullion bench plan`: one plan of the provisioner over many pending pods, without API server and controllers.
//!
//! What is measured is what holds the model that scheduler and provisioner share: finding each pod's class, trying the
//! nodes that exist (none has room), planning new ones, putting refusals into words, and taking all of it back.

use std::time::Instant;

use mullion_api::{
    eksctl::KubernetesVersion,
    karpenter::{EC2NodeClass, NodePool},
};
use mullion_cloud::{
    Clock, Speed, WindowsAddresses,
    sim::{Config, SimulatedEc2},
};
use mullion_controllers::provisioner::{self, market::Market, template};
use mullion_engine::{
    Cluster, Options,
    model::{Container, NodeSpec, PodSpec, PodTemplate, ResourceMap, StringMap},
    provision::{NodeTemplate, PlanRequest},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{
    cli::{Output, whole},
    failure::Failure,
    out,
};

/// Flags of `mullion bench plan`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "Examples:
  mullion bench plan
  mullion bench plan --pods 20000 --templates 100 -o json")]
pub(crate) struct Args {
    /// Pending pods [default: 5000, then 20000]
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = |text: &str| whole(text, 1, 1_000_000))]
    pods: Option<u32>,
    /// Templates that the pods are of, in equal parts
    #[arg(long, value_name = "T", default_value_t = 1, allow_negative_numbers = true, value_parser = |text: &str| whole(text, 1, 1_000_000))]
    templates: u32,
    /// Nodes that exist, without room
    #[arg(long, value_name = "N", default_value_t = 500, allow_negative_numbers = true, value_parser = |text: &str| whole(text, 0, 1_000_000))]
    nodes: u32,
    /// How to print the results
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// What the one pool, of machines of up to 16 vCPUs, does for the pods.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Case {
    /// It buys nodes for all of them.
    Bought,
    /// It may buy nodes for some.
    Limited,
    /// Its taint keeps all away.
    Tainted,
}

/// Repetitions of which the median is told.
const RUNS: usize = 5;

/// Measures every case and prints a line for each.
pub(crate) async fn run(args: &Args) -> Result<(), Failure> {
    if args.output == Output::Text {
        out::line(&format!(
            "{:<8} {:>8} {:>9} {:>8} {:>9} {:>12} {:>10}",
            "CASE", "PODS", "TEMPLATES", "PLANNED", "WITHOUT", "NEW NODES", "SECONDS"
        ));
    }
    let sizes = args.pods.map_or(vec![5_000, 20_000], |pods| vec![pods]);
    for pods in sizes {
        for case in [Case::Bought, Case::Limited, Case::Tainted] {
            let request = PlanRequest {
                pods: (0..pods)
                    .map(|index| pod(index, index % args.templates, 300, 256))
                    .collect(),
                templates: vec![pool(case).await?],
                ..PlanRequest::default()
            };
            measure(case.name(), &request, args)?;
        }
    }
    Ok(())
}

impl Case {
    fn name(self) -> &'static str {
        match self {
            Self::Bought => "bought",
            Self::Limited => "limited",
            Self::Tainted => "tainted",
        }
    }
}

fn measure(case: &str, request: &PlanRequest, args: &Args) -> Result<(), Failure> {
    let failed = |error| Failure::run(format!("the plan is impossible: {error}"));
    let mut cluster = Cluster::new(Options::default());
    for node in 0..args.nodes {
        cluster.set_node(&full_node(node)).map_err(failed)?;
    }
    let mut seconds = Vec::with_capacity(RUNS);
    let mut last = None;
    for _ in 0..RUNS {
        let start = Instant::now();
        let checkpoint = cluster.checkpoint();
        let answer = provisioner::answer(&mut cluster, request).map_err(failed)?;
        cluster.rollback(checkpoint);
        seconds.push(start.elapsed().as_secs_f64());
        last = Some(answer);
    }
    seconds.sort_by(f64::total_cmp);
    let (seconds, nodes, without) = match &last {
        Some(answer) => (
            seconds[RUNS / 2],
            answer.plan.nodes.len(),
            answer.refusals.len(),
        ),
        None => return Ok(()),
    };
    let (pods, templates) = (request.pods.len(), args.templates);
    let planned = pods - without;
    match args.output {
        Output::Json => out::line(
            &json!({
                "scenario": format!("plan-{case}"), "pods": pods, "templates": templates, "planned": planned, "without": without,
                "new_nodes": nodes, "seconds": seconds,
            })
            .to_string(),
        ),
        Output::Text => out::line(&format!(
            "{case:<8} {pods:>8} {templates:>9} {planned:>8} {without:>9} {nodes:>12} {seconds:>10.4}"
        )),
    }
    Ok(())
}

/// A pod of a template that asks for this much.
pub(super) fn pod(index: u32, template: u32, cpu_milli: u32, mib: u32) -> PodSpec {
    let app = format!("web-{template}");
    let mut container = Container::default();
    let (cpu, memory) = (format!("{cpu_milli}m"), format!("{mib}Mi"));
    container.resources.requests = amounts(&[("cpu", &cpu), ("memory", &memory)]);
    PodSpec {
        uid: format!("{index:08}-0000-4000-8000-000000000000"),
        name: format!("{app}-{index}"),
        template: PodTemplate {
            namespace: "default".to_owned(),
            labels: StringMap::from([("app".to_owned(), app)]),
            containers: vec![container],
            ..PodTemplate::default()
        },
        ..PodSpec::default()
    }
}

fn full_node(index: u32) -> NodeSpec {
    let room = amounts(&[("cpu", "100m"), ("memory", "1Gi"), ("pods", "234")]);
    NodeSpec {
        capacity: room.clone(),
        allocatable: room,
        ..NodeSpec::named(format!("ip-10-0-{}-{}", index / 256, index % 256))
    }
}

fn amounts(pairs: &[(&str, &str)]) -> ResourceMap {
    let parse = |(name, text): &(&str, &str)| {
        let amount = text.parse().expect("the amounts above are quantities");
        ((*name).to_owned(), amount)
    };
    pairs.iter().map(parse).collect()
}

/// A pool over the whole catalogue of two zones, as the provisioner shows it to the engine.
pub(super) async fn pool(case: Case) -> Result<NodeTemplate, Failure> {
    let version = KubernetesVersion::from_minor(31).expect("a version that exists");
    let clock = Clock::starting_at(jiff::Timestamp::UNIX_EPOCH);
    let cloud = SimulatedEc2::new(
        Config {
            speed: Speed::INSTANT,
            ..Config::new("bench", "us-west-2", version)
        },
        clock,
    );
    let class: EC2NodeClass = object(json!({
        "metadata": { "name": "default" },
        "spec": { "amiFamily": "AL2023" },
        "status": { "subnets": [{ "id": "subnet-1", "zone": "us-west-2a" }, { "id": "subnet-2", "zone": "us-west-2b" }] },
    }));
    let taint = json!({ "key": "team", "value": "b", "effect": "NoSchedule" });
    let taints: Vec<_> = (case == Case::Tainted)
        .then_some(taint)
        .into_iter()
        .collect();
    let limits = (case == Case::Limited).then(|| json!({ "cpu": "640" }));
    let pool: NodePool = object(json!({
        "metadata": { "name": "default" },
        "spec": {
            "limits": limits,
            "template": { "spec": {
                "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" },
                "requirements": [{ "key": "karpenter.k8s.aws/instance-cpu", "operator": "Lt", "values": ["17"] }],
                "taints": taints,
            } },
        },
    }));
    let market = Market::open(&class, version, WindowsAddresses::Single, &cloud)
        .await
        .map_err(|error| Failure::run(format!("nothing to buy: {error}")))?;
    Ok(template::of(
        &pool,
        &market,
        std::iter::empty(),
        std::iter::empty(),
    ))
}

fn object<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("the objects above are well-formed")
}
