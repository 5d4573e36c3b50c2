//! Defines mixes of pods and pools for `mullion bench plan`. All buy nodes by cost, from every instance type of the catalogue in three
//! zones, spot and on demand.

use mullion_engine::{
    model::{
        Container, LabelSelector, PodAffinity, PodAffinityTerm, PodSpec, PodTemplate, StringMap,
        Toleration, TolerationOperator, TopologySpreadConstraint, WhenUnsatisfiable, label,
    },
    provision::{NodeTemplate, PlanRequest},
};
use serde_json::{Value, json};

use super::provision::{amounts, market, pod, template};
use crate::failure::Failure;

const ZONES: [&str; 3] = ["us-west-2a", "us-west-2b", "us-west-2c"];

/// A mix of pods.
#[derive(Clone, Copy)]
pub(super) enum Mix {
    /// Pods of a hundred templates, each with a size of its own.
    Templates,
    /// Every pod has a size of its own.
    Varied,
    /// The five kinds of pods of Karpenter's own benchmark in equal parts: plain, spread over zones, spread over hosts, affine within a
    /// zone, and anti-affine within a host.
    Diverse,
    /// A hundred templates, of which half are for Windows and request addresses; five pools have limits, and six DaemonSets take room on
    /// each node.
    Windows,
}

impl Mix {
    pub(super) fn name(self) -> &'static str {
        match self {
            Mix::Templates => "cost",
            Mix::Varied => "varied",
            Mix::Diverse => "diverse",
            Mix::Windows => "windows",
        }
    }

    /// Returns the number of templates, and the request to plan.
    pub(super) async fn request(self, pods: u32) -> Result<(u32, PlanRequest), Failure> {
        let (templates, make): (u32, fn(u32, u32) -> PodSpec) = match self {
            Mix::Templates => (100, sized),
            Mix::Varied => (pods, sized),
            Mix::Diverse => (5 * 7 * 5 * 6, diverse),
            Mix::Windows => (100, half_windows),
        };
        let pools = match self {
            Mix::Windows => five_pools().await?,
            _ => vec![template(
                "default",
                open_pool(&Value::Null),
                &market("AL2023", &ZONES).await?,
            )],
        };
        let request = PlanRequest {
            pods: (0..pods)
                .map(|index| make(index, index % templates))
                .collect(),
            templates: pools,
            by_cost: true,
            ..PlanRequest::default()
        };
        Ok((templates, request))
    }
}

/// Returns a pseudo-random number that is the same in every run (splitmix64).
fn hash(number: u32) -> u64 {
    let mut mixed = u64::from(number)
        .wrapping_add(1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Returns a plain pod with 50 millicores to 4 cores and 64 MiB to 16 GiB.
fn sized(index: u32, template: u32) -> PodSpec {
    let dice = hash(template);
    let cpu = 50 + (dice % 3951) as u32;
    let memory = 64 + ((dice >> 32) % 16_321) as u32;
    pod(index, template, cpu, memory)
}

/// Returns a pod of one of the five kinds of Karpenter's benchmark, with its sizes and labels.
fn diverse(index: u32, template: u32) -> PodSpec {
    let dice = hash(template);
    let cpu = [100, 250, 500, 1000, 1500][(dice % 5) as usize];
    let memory = [100, 256, 512, 1024, 2048, 4096][(dice >> 8) as usize % 6];
    let mut made = pod(index, template, cpu, memory);
    let letter = |dice: u64| char::from(b'a' + (dice % 7) as u8).to_string();
    let own = StringMap::from([("my-label".to_owned(), letter(dice >> 16))]);
    let near = StringMap::from([("my-affinity".to_owned(), letter(dice >> 24))]);
    let nginx = StringMap::from([("app".to_owned(), "nginx".to_owned())]);
    let spread = |key: &str| TopologySpreadConstraint {
        max_skew: 1,
        topology_key: key.to_owned(),
        when_unsatisfiable: WhenUnsatisfiable::DoNotSchedule,
        label_selector: Some(selector(&own)),
        ..TopologySpreadConstraint::default()
    };
    let term = |labels: &StringMap, key: &str| {
        let term = PodAffinityTerm {
            label_selector: Some(selector(labels)),
            topology_key: key.to_owned(),
            ..PodAffinityTerm::default()
        };
        Some(PodAffinity {
            required: vec![term],
            ..PodAffinity::default()
        })
    };
    let kind = template % 5;
    let own_template = &mut made.template;
    own_template.labels = match kind {
        0..=2 => own.clone(),
        3 => near.clone(),
        _ => nginx.clone(),
    };
    match kind {
        1 => own_template.topology_spread_constraints = vec![spread(label::ZONE)],
        2 => own_template.topology_spread_constraints = vec![spread(label::HOSTNAME)],
        3 => own_template.affinity.pod_affinity = term(&near, label::ZONE),
        4 => own_template.affinity.pod_anti_affinity = term(&nginx, label::HOSTNAME),
        _ => {}
    }
    made
}

fn selector(labels: &StringMap) -> LabelSelector {
    LabelSelector {
        match_labels: labels.clone(),
        ..LabelSelector::default()
    }
}

/// Returns a pod that is for Windows and requests an address if its template's number is even, or else for Linux.
fn half_windows(index: u32, template: u32) -> PodSpec {
    let mut made = sized(index, template);
    let os = if template.is_multiple_of(2) {
        "windows"
    } else {
        "linux"
    };
    let node_selector = &mut made.template.node_selector;
    node_selector.insert(label::OS.to_owned(), os.to_owned());
    if os == "windows" {
        let requests = &mut made.template.containers[0].resources.requests;
        requests.extend(amounts(&[("vpc.amazonaws.com/PrivateIPv4Address", "1")]));
    }
    made
}

async fn five_pools() -> Result<Vec<NodeTemplate>, Failure> {
    let linux = market("AL2023", &ZONES).await?;
    let windows = market("Windows2022", &ZONES).await?;
    let limits = json!({ "cpu": "100000", "memory": "400000Gi" });
    let mut pools = vec![
        template("linux-spot", only("spot", &limits), &linux),
        template("linux", only("on-demand", &limits), &linux),
        template("windows-spot", only("spot", &limits), &windows),
        template("windows", only("on-demand", &limits), &windows),
        template("any", open_pool(&limits), &linux),
    ];
    for pool in &mut pools {
        pool.daemons = vec![daemon(); 6];
    }
    Ok(pools)
}

/// Returns the pod of a DaemonSet that runs on every node.
fn daemon() -> PodTemplate {
    let mut daemon = PodTemplate {
        namespace: "kube-system".to_owned(),
        containers: vec![Container::default()],
        tolerations: vec![Toleration {
            operator: TolerationOperator::Exists,
            ..Toleration::default()
        }],
        ..PodTemplate::default()
    };
    daemon.containers[0].resources.requests = amounts(&[("cpu", "100m"), ("memory", "150Mi")]);
    daemon
}

/// Returns a pool of one capacity type.
fn only(capacity: &str, limits: &Value) -> Value {
    let requirement =
        json!({ "key": "karpenter.sh/capacity-type", "operator": "In", "values": [capacity] });
    json!({ "limits": limits, "template": { "spec": { "requirements": [requirement] } } })
}

/// Returns the spec of a pool that buys both capacity types.
fn open_pool(limits: &Value) -> Value {
    let requirement = json!({ "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot", "on-demand"] });
    json!({ "limits": limits, "template": { "spec": { "requirements": [requirement] } } })
}
