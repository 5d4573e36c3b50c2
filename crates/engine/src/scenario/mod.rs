//! Benchmark scenarios of the engine: clusters, pods and the questions asked about them. Time is measured by the
//! caller.
//!
//! The caller prepares a [`Run`], starts a clock, calls [`Run::run`] and stops the clock. Shapes are those of
//! kube-scheduler's own performance tests: nodes with 32 cpu, 128Gi and 110 pods in three zones; pods with 100m and
//! 128Mi in 40 app groups (pod i is in group i mod 40) whose constraints select their own group. Invariant: equal
//! arguments give equal runs, decision by decision.

mod shape;

use std::fmt::Write as _;

use crate::class::PodClassId;
use crate::cluster::{Cluster, NodeId, Options};
use crate::model::{NamespaceSpec, NodeSpec, PodTemplate};
use crate::preempt::Preemption;
use crate::schedule::Decision;

/// One scenario; the text of each variant describes its pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scenario {
    /// Pods that request only cpu and memory.
    Basic,
    /// 30 % of the nodes run Windows behind a taint; every second pod selects and tolerates it.
    Mixed,
    /// Pods with a hard spread constraint over zones.
    ZoneSpread,
    /// Pods of a service, which are spread over hosts and zones by the soft default constraints.
    DefaultSpread,
    /// Pods with required affinity to their group, by zone.
    Affinity,
    /// Pods with required anti-affinity to their group, by host.
    AntiAffinity,
    /// Pods with required anti-affinity, by host, to their group in all namespaces of a team.
    NamespaceAntiAffinity,
    /// Pods that prefer the zones of their group, but other hosts.
    Preferred,
    /// Pods that need preemption: all pod slots are taken by pods of lower priority.
    Preemption,
    /// Pods that fit, alternating with as many that fit nowhere.
    Backlog,
    /// Pods of 200 templates in turn, each with different requests.
    Requests,
    /// Pods with a template of their own for each node, as a DaemonSet's.
    Daemons,
    /// Pods with a claim each, bound to a volume in one of the zones.
    Volumes,
    /// [`Scenario::Basic`] at the size of the largest clusters, with 200 app groups.
    Large,
}

impl Scenario {
    /// All scenarios in the order in which they are reported.
    pub const ALL: [Scenario; 14] = [
        Scenario::Basic,
        Scenario::Mixed,
        Scenario::ZoneSpread,
        Scenario::DefaultSpread,
        Scenario::Affinity,
        Scenario::AntiAffinity,
        Scenario::NamespaceAntiAffinity,
        Scenario::Preferred,
        Scenario::Preemption,
        Scenario::Backlog,
        Scenario::Requests,
        Scenario::Daemons,
        Scenario::Volumes,
        Scenario::Large,
    ];

    /// Returns the scenario's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Scenario::Basic => "basic",
            Scenario::Mixed => "mixed",
            Scenario::ZoneSpread => "zone-spread",
            Scenario::DefaultSpread => "default-spread",
            Scenario::Affinity => "affinity",
            Scenario::AntiAffinity => "anti-affinity",
            Scenario::NamespaceAntiAffinity => "namespace-anti-affinity",
            Scenario::Preferred => "preferred",
            Scenario::Preemption => "preemption",
            Scenario::Backlog => "backlog",
            Scenario::Requests => "requests",
            Scenario::Daemons => "daemons",
            Scenario::Volumes => "volumes",
            Scenario::Large => "large",
        }
    }

    /// Returns the scenario with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|scenario| scenario.name() == name)
    }

    /// Returns the default numbers of nodes and pods.
    pub fn size(self) -> (usize, usize) {
        match self {
            Scenario::Basic
            | Scenario::Mixed
            | Scenario::ZoneSpread
            | Scenario::DefaultSpread
            | Scenario::Requests => (5_000, 50_000),
            Scenario::Affinity
            | Scenario::AntiAffinity
            | Scenario::Preferred
            | Scenario::Preemption
            | Scenario::Daemons
            | Scenario::Volumes => (5_000, 5_000),
            Scenario::NamespaceAntiAffinity => (6_000, 5_000),
            Scenario::Backlog => (5_000, 10_000),
            Scenario::Large => (100_000, 1_000_000),
        }
    }

    /// Returns the node with this index.
    pub fn node(self, index: usize) -> NodeSpec {
        shape::node(index, self == Scenario::Mixed)
    }

    /// Returns the pod templates; pod i has template i modulo their number.
    pub fn templates(self) -> Vec<PodTemplate> {
        shape::templates(self)
    }

    /// Builds the cluster and compiles the pods, so that only decisions are left to measure.
    pub fn prepare(self, nodes: usize, pods: usize) -> Run {
        let mut cluster = Cluster::new(Options::default());
        for index in 0..nodes {
            cluster
                .add_node(&self.node(index))
                .expect("names of nodes differ");
        }
        for namespace in 0..shape::NAMESPACES {
            if self == Scenario::NamespaceAntiAffinity {
                cluster.set_namespace(&NamespaceSpec {
                    name: shape::namespace(namespace),
                    labels: [("team".into(), "devops".into())].into(),
                });
            }
        }
        // Reserved before the clock starts, so that growing tables are not measured.
        cluster.expect_pods(pods);
        let own = shape::own_templates(self, nodes, pods);
        if self == Scenario::Volumes {
            shape::store(&mut cluster, nodes, pods);
        }
        let templates = if own.is_empty() {
            shape::templates(self)
        } else {
            Vec::new()
        };
        if self == Scenario::DefaultSpread {
            templates
                .iter()
                .for_each(|pod| cluster.set_service(&shape::service(pod)));
        }
        if self == Scenario::Preemption {
            fill(&mut cluster);
        }
        let mut class =
            |template: &PodTemplate| cluster.pod_class(template).expect("valid requests");
        let classes = templates.iter().map(&mut class).collect();
        let misfit = (self == Scenario::Backlog).then(|| class(&shape::misfit()));
        Run {
            cluster,
            classes,
            own,
            misfit,
            pods,
            placed: 0,
            name: String::new(),
        }
    }
}

/// Fills every pod slot with pods of low priority.
fn fill(cluster: &mut Cluster) {
    let class = cluster.pod_class(&shape::filler()).expect("valid requests");
    let nodes: Vec<NodeId> = cluster.nodes().collect();
    let mut name = String::new();
    for (index, node) in nodes.into_iter().enumerate() {
        for slot in 0..shape::POD_SLOTS {
            name.clear();
            let _ = write!(name, "filler-{index}-{slot}");
            cluster
                .place(class, "", &name, node)
                .expect("names of pods differ");
        }
    }
}

/// A cluster and the pods to be placed in it.
#[derive(Clone, Debug)]
pub struct Run {
    cluster: Cluster,
    classes: Vec<PodClassId>,
    /// Templates of one pod each, which are compiled during the run. Empty if pods share templates.
    own: Vec<PodTemplate>,
    /// A pod that fits nowhere, asked about after each other pod.
    misfit: Option<PodClassId>,
    pods: usize,
    /// The number of pods that are decided.
    placed: usize,
    name: String,
}

/// Writes a pod's name without `format!`, which would take a twentieth of the measured time.
fn name_pod(name: &mut String, mut index: usize) {
    let mut digits = [0; 20];
    let mut first = digits.len();
    loop {
        first -= 1;
        digits[first] = b'0' + (index % 10) as u8;
        index /= 10;
        if index == 0 {
            break;
        }
    }
    name.clear();
    name.push_str("pod-");
    name.extend(digits[first..].iter().map(|digit| char::from(*digit)));
}

/// The result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Pods that got a node.
    pub placed: usize,
    /// The number of refusals.
    pub refused: usize,
    /// Pods evicted for others.
    pub evicted: usize,
}

impl Run {
    /// Decides all remaining pods one after the other, and places each before the next is decided.
    pub fn run(&mut self) -> Outcome {
        self.place(self.pods)
    }

    /// Decides the next `pods` pods like [`Run::run`].
    pub fn place(&mut self, pods: usize) -> Outcome {
        let mut outcome = Outcome::default();
        let end = self.pods.min(self.placed + pods);
        for index in self.placed..end {
            name_pod(&mut self.name, index);
            let class = match self.own.len() {
                0 => self.classes[index % self.classes.len()],
                own => {
                    let template = &self.own[index % own];
                    self.cluster.pod_class(template).expect("valid requests")
                }
            };
            self.decide(class, index as u64, &mut outcome);
            if let Some(misfit) = self.misfit {
                let decision = self.cluster.schedule(misfit, index as u64);
                outcome.refused += usize::from(matches!(decision, Decision::Unschedulable(_)));
            }
        }
        self.placed = end;
        outcome
    }

    /// Places the next `pods` pods and rolls that back.
    pub fn what_if(&mut self, pods: usize) -> Outcome {
        let before = self.placed;
        let checkpoint = self.cluster.checkpoint();
        let outcome = self.place(pods);
        self.cluster.rollback(checkpoint);
        self.placed = before;
        outcome
    }

    fn decide(&mut self, class: PodClassId, seed: u64, outcome: &mut Outcome) {
        let cluster = &mut self.cluster;
        let node = match cluster.schedule(class, seed) {
            Decision::Node(node) => node,
            Decision::Unschedulable(refused) => {
                outcome.refused += 1;
                let Preemption::Evict { chosen, .. } =
                    cluster.preempt(class, &self.name, &refused, seed)
                else {
                    return;
                };
                for victim in &chosen.victims {
                    cluster.remove_pod(victim).expect("victims are there");
                    outcome.evicted += 1;
                }
                chosen.node
            }
        };
        cluster
            .place(class, "", &self.name, node)
            .expect("names of pods differ");
        outcome.placed += 1;
    }

    /// Returns the cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_does_at_a_small_size_what_it_is_for() {
        for scenario in Scenario::ALL {
            let outcome = scenario.prepare(60, 120).run();
            assert_eq!(outcome.placed, 120, "{}", scenario.name());
            let refused = matches!(scenario, Scenario::Preemption | Scenario::Backlog);
            assert_eq!(outcome.refused > 0, refused, "{}", scenario.name());
            assert_eq!(
                outcome.evicted,
                if scenario == Scenario::Preemption {
                    120
                } else {
                    0
                }
            );
        }
    }

    #[test]
    fn a_what_if_leaves_the_run_where_it_was() {
        let mut asked = Scenario::Preemption.prepare(20, 40);
        let mut plain = asked.clone();
        asked.place(10);
        assert_eq!(asked.what_if(20).evicted, 20);
        assert_eq!(asked.run().placed, 30);
        plain.run();
        let bound = |run: &Run| {
            let nodes = run.cluster().nodes();
            let pods = nodes.map(|node| run.cluster().pods_on(node).join(" "));
            pods.collect::<Vec<_>>()
        };
        assert_eq!(bound(&asked), bound(&plain));
    }

    #[test]
    fn pods_are_named_by_their_numbers() {
        let mut name = "before".to_owned();
        for index in [0, 7, 10, 1_234_567] {
            name_pod(&mut name, index);
            assert_eq!(name, format!("pod-{index}"));
        }
    }

    #[test]
    fn names_lead_back_to_their_scenarios() {
        assert!(
            Scenario::ALL
                .iter()
                .all(|scenario| Scenario::named(scenario.name()) == Some(*scenario))
        );
        assert_eq!(Scenario::named("nothing"), None);
    }
}
