//! Implements `mullion bench plan`: it measures one plan of the provisioner for many pending pods, without API server and controllers.
//!
//! The measured time is how long the plan locks the model, which the scheduler and the provisioner share: finding each pod's class,
//! trying the existing nodes (none has room), planning new ones, wording the refusals, and undoing all of it.

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

use super::mix::Mix;
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
    /// Templates that the pods of the first three cases are of, in equal parts
    #[arg(long, value_name = "T", default_value_t = 1, allow_negative_numbers = true, value_parser = |text: &str| whole(text, 1, 1_000_000))]
    templates: u32,
    /// Nodes that exist, without room
    #[arg(long, value_name = "N", default_value_t = 500, allow_negative_numbers = true, value_parser = |text: &str| whole(text, 0, 1_000_000))]
    nodes: u32,
    /// What pods and pools are like; `diverse` takes longest
    #[arg(long, value_name = "CASE", value_enum, value_delimiter = ',', default_values = ["bought", "limited", "tainted", "cost", "varied", "windows"])]
    cases: Vec<Chosen>,
    /// How to print the results
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// What the only pool does for the pods; it buys instances with up to 16 vCPUs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Case {
    /// The pool buys nodes for all pods.
    Bought,
    /// The pool's limits allow nodes for some pods only.
    Limited,
    /// The pool has a taint that no pod tolerates.
    Tainted,
}

/// A case by its name.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Chosen {
    /// One pool buys nodes for all pods, one by one
    Bought,
    /// It may buy nodes for some
    Limited,
    /// Its taint keeps all away
    Tainted,
    /// By cost, for pods of a hundred sizes
    Cost,
    /// By cost, for pods that all have sizes of their own
    Varied,
    /// By cost, for the five kinds of Karpenter's own benchmark
    Diverse,
    /// By cost, half of the pods for Windows, from five pools with limits
    Windows,
}

/// The number of runs; their median is printed.
const RUNS: usize = 5;
/// The number of seconds after which no further run starts.
const ENOUGH_SECONDS: f64 = 20.0;

/// Measures every case and prints a line for each.
pub(crate) async fn run(args: &Args) -> Result<(), Failure> {
    if args.output == Output::Text {
        out::line(&format!(
            "{:<8} {:>8} {:>9} {:>8} {:>9} {:>12} {:>10} {:>10} {:>10}",
            "CASE",
            "PODS",
            "TEMPLATES",
            "PLANNED",
            "WITHOUT",
            "NEW NODES",
            "USD/H",
            "AT LEAST",
            "SECONDS"
        ));
    }
    let sizes = args.pods.map_or(vec![5_000, 20_000], |pods| vec![pods]);
    for pods in sizes {
        for case in &args.cases {
            if let Some(mix) = case.mix() {
                let (templates, request) = mix.request(pods).await?;
                measure(mix.name(), templates, &request, args)?;
                continue;
            }
            let case = case.one_by_one();
            let request = PlanRequest {
                pods: (0..pods)
                    .map(|index| pod(index, index % args.templates, 300, 256))
                    .collect(),
                templates: vec![pool(case).await?],
                ..PlanRequest::default()
            };
            measure(case.name(), args.templates, &request, args)?;
        }
    }
    Ok(())
}

impl Chosen {
    /// Returns the mix of pods, for cases in which nodes are bought by cost.
    fn mix(self) -> Option<Mix> {
        Some(match self {
            Self::Cost => Mix::Templates,
            Self::Varied => Mix::Varied,
            Self::Diverse => Mix::Diverse,
            Self::Windows => Mix::Windows,
            Self::Bought | Self::Limited | Self::Tainted => return None,
        })
    }

    /// Returns what the pool does, for cases in which nodes are bought one by one.
    fn one_by_one(self) -> Case {
        match self {
            Self::Limited => Case::Limited,
            Self::Tainted => Case::Tainted,
            _ => Case::Bought,
        }
    }
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

fn measure(case: &str, templates: u32, request: &PlanRequest, args: &Args) -> Result<(), Failure> {
    let failed = |error| Failure::run(format!("the plan is impossible: {error}"));
    let mut cluster = Cluster::new(Options::default());
    for node in 0..args.nodes {
        cluster.set_node(&full_node(node)).map_err(failed)?;
    }
    let mut seconds = Vec::with_capacity(RUNS);
    let mut last = None;
    while seconds.len() < RUNS && seconds.iter().sum::<f64>() < ENOUGH_SECONDS {
        let start = Instant::now();
        let checkpoint = cluster.checkpoint();
        let answer = provisioner::answer(&mut cluster, request).map_err(failed)?;
        cluster.rollback(checkpoint);
        seconds.push(start.elapsed().as_secs_f64());
        last = Some(answer);
    }
    seconds.sort_by(f64::total_cmp);
    let Some(answer) = last else { return Ok(()) };
    let (seconds, nodes, without) = (
        seconds[seconds.len() / 2],
        answer.plan.nodes.len(),
        answer.refusals.len(),
    );
    let pods = request.pods.len();
    let planned = pods - without;
    let price = answer.plan.price_micro_usd() as f64 / 1e6;
    let bound = answer.plan.bound_micro_usd.map(|bound| bound as f64 / 1e6);
    match args.output {
        Output::Json => out::line(
            &json!({
                "scenario": format!("plan-{case}"), "pods": pods, "templates": templates, "planned": planned, "without": without,
                "new_nodes": nodes, "usd_per_hour": price, "usd_per_hour_at_least": bound, "seconds": seconds,
            })
            .to_string(),
        ),
        Output::Text => {
            let bound = bound.map_or("-".to_owned(), |bound| format!("{bound:.2}"));
            out::line(&format!(
                "{case:<8} {pods:>8} {templates:>9} {planned:>8} {without:>9} {nodes:>12} {price:>10.2} {bound:>10} {seconds:>10.4}"
            ));
        }
    }
    Ok(())
}

/// Returns a pod of a template with these requests.
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

pub(super) fn amounts(pairs: &[(&str, &str)]) -> ResourceMap {
    let parse = |(name, text): &(&str, &str)| {
        let amount = text.parse().expect("the amounts above are quantities");
        ((*name).to_owned(), amount)
    };
    pairs.iter().map(parse).collect()
}

/// Returns a pool that can buy from the whole catalogue in two zones, as the provisioner gives it to the engine.
pub(super) async fn pool(case: Case) -> Result<NodeTemplate, Failure> {
    let taint = json!({ "key": "team", "value": "b", "effect": "NoSchedule" });
    let taints: Vec<_> = (case == Case::Tainted)
        .then_some(taint)
        .into_iter()
        .collect();
    let spec = json!({
        "limits": (case == Case::Limited).then(|| json!({ "cpu": "640" })),
        "template": { "spec": {
            "requirements": [{ "key": "karpenter.k8s.aws/instance-cpu", "operator": "Lt", "values": ["17"] }],
            "taints": taints,
        } },
    });
    let market = market("AL2023", &["us-west-2a", "us-west-2b"]).await?;
    Ok(template("default", spec, &market))
}

/// Returns the instance types and prices for an AMI family in some zones.
pub(super) async fn market(family: &str, zones: &[&str]) -> Result<Market, Failure> {
    let version = KubernetesVersion::from_minor(31).expect("a version that exists");
    let clock = Clock::starting_at(jiff::Timestamp::UNIX_EPOCH);
    let cloud = SimulatedEc2::new(
        Config {
            speed: Speed::INSTANT,
            ..Config::new("bench", "us-west-2", version)
        },
        clock,
    );
    let subnets: Vec<_> = zones
        .iter()
        .map(|zone| json!({ "id": format!("subnet-{zone}"), "zone": zone }))
        .collect();
    let class: EC2NodeClass = object(json!({
        "metadata": { "name": "default" },
        "spec": { "amiFamily": family },
        "status": { "subnets": subnets },
    }));
    Market::open(&class, version, WindowsAddresses::Single, &cloud)
        .await
        .map_err(|error| Failure::run(format!("nothing to buy: {error}")))
}

/// Returns the pool with this spec, as the engine needs it.
pub(super) fn template(name: &str, mut spec: Value, market: &Market) -> NodeTemplate {
    spec["template"]["spec"]["nodeClassRef"] =
        json!({ "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" });
    let pool: NodePool = object(json!({ "metadata": { "name": name }, "spec": spec }));
    template::of(&pool, market, std::iter::empty(), std::iter::empty())
}

fn object<T: DeserializeOwned>(value: Value) -> T {
    T::deserialize(&value).expect("the objects above are well-formed")
}
