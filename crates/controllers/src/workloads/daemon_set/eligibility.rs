//! Decides on which nodes a DaemonSet runs (kube-controller-manager: `NodeShouldRunDaemonPod`). Pure.

use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{
        Affinity, Node, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint, Toleration,
    },
};
use kube::ResourceExt;

/// Whether a DaemonSet's pod should and may run on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Eligibility {
    /// The node should run a pod of the DaemonSet.
    pub(super) should_run: bool,
    /// A pod that already runs on the node may stay.
    pub(super) may_stay: bool,
}

/// Decides about one node. `tolerations` are those of the DaemonSet's pods, including the default ones.
pub(super) fn judge(set: &DaemonSet, tolerations: &[Toleration], node: &Node) -> Eligibility {
    let no = Eligibility {
        should_run: false,
        may_stay: false,
    };
    let Some(spec) = set
        .spec
        .as_ref()
        .and_then(|spec| spec.template.spec.as_ref())
    else {
        return no;
    };
    let name = node.name_any();
    let elsewhere = spec
        .node_name
        .as_deref()
        .is_some_and(|wanted| !wanted.is_empty() && wanted != name);
    if elsewhere
        || !matches_node_selector(spec, node)
        || !matches_required_affinity(spec.affinity.as_ref(), node)
    {
        return no;
    }
    let tolerates_all = |effects: &[&str]| {
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
        let mut relevant = taints
            .into_iter()
            .flatten()
            .filter(|taint| effects.contains(&taint.effect.as_str()));
        relevant.all(|taint| {
            tolerations
                .iter()
                .any(|toleration| tolerates(toleration, taint))
        })
    };
    Eligibility {
        // A NoSchedule taint that comes later does not evict a running daemon, but keeps a new one away.
        should_run: tolerates_all(&["NoSchedule", "NoExecute"]),
        may_stay: tolerates_all(&["NoExecute"]),
    }
}

/// Returns the tolerations of a DaemonSet's pods: the template's, and those that every daemon pod gets. A default
/// toleration replaces the template's one for the same taint.
pub fn tolerations(spec: &PodSpec) -> Vec<Toleration> {
    const UNREACHABLE: [(&str, &str); 6] = [
        ("node.kubernetes.io/not-ready", "NoExecute"),
        ("node.kubernetes.io/unreachable", "NoExecute"),
        ("node.kubernetes.io/disk-pressure", "NoSchedule"),
        ("node.kubernetes.io/memory-pressure", "NoSchedule"),
        ("node.kubernetes.io/pid-pressure", "NoSchedule"),
        ("node.kubernetes.io/unschedulable", "NoSchedule"),
    ];
    let host_network = spec
        .host_network
        .unwrap_or_default()
        .then_some(HOST_NETWORK);
    let mut tolerations = spec.tolerations.clone().unwrap_or_default();
    for (key, effect) in UNREACHABLE.into_iter().chain(host_network) {
        let toleration = Toleration {
            key: Some(key.to_owned()),
            operator: Some("Exists".to_owned()),
            effect: Some(effect.to_owned()),
            ..Toleration::default()
        };
        let same = |other: &&mut Toleration| {
            (&other.key, &other.operator, &other.effect)
                == (&toleration.key, &toleration.operator, &toleration.effect)
                && other.value.as_deref().unwrap_or_default().is_empty()
        };
        match tolerations.iter_mut().find(same) {
            // Replacing also drops `tolerationSeconds`, so a daemon stays on a node that is unreachable for
            // long.
            Some(existing) => *existing = toleration,
            None => tolerations.push(toleration),
        }
    }
    tolerations
}

/// The taint that daemon pods on the host's network tolerate, since they do not need the pod network.
const HOST_NETWORK: (&str, &str) = ("node.kubernetes.io/network-unavailable", "NoSchedule");

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let (effect, key) = (text(&toleration.effect), text(&toleration.key));
    let (value, tainted_with) = (text(&toleration.value), text(&taint.value));
    if (!effect.is_empty() && effect != taint.effect) || (!key.is_empty() && key != taint.key) {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or_default() {
        "" | "Equal" => value == tainted_with,
        "Exists" => true,
        "Gt" => compare(&tainted_with, &value).is_some_and(|(taint, bound)| taint > bound),
        "Lt" => compare(&tainted_with, &value).is_some_and(|(taint, bound)| taint < bound),
        _ => false,
    }
}

fn matches_node_selector(spec: &PodSpec, node: &Node) -> bool {
    spec.node_selector
        .iter()
        .flatten()
        .all(|(key, value)| node.labels().get(key) == Some(value))
}

fn matches_required_affinity(affinity: Option<&Affinity>, node: &Node) -> bool {
    let required = affinity.and_then(|affinity| {
        affinity
            .node_affinity
            .as_ref()?
            .required_during_scheduling_ignored_during_execution
            .as_ref()
    });
    required.is_none_or(|required| {
        required
            .node_selector_terms
            .iter()
            .any(|term| matches_term(term, node))
    })
}

/// Returns whether the term matches the node. A term without any requirement matches no node.
fn matches_term(term: &NodeSelectorTerm, node: &Node) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let name = node.name_any();
    (!expressions.is_empty() || !fields.is_empty())
        && expressions
            .iter()
            .all(|one| matches(one, node.labels().get(&one.key).map(String::as_str)))
        && fields
            .iter()
            .all(|one| one.key == "metadata.name" && matches(one, Some(&name)))
}

fn matches(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = value.is_some_and(|value| values.iter().any(|listed| listed == value));
    let numbers = || compare(value?, values.first()?);
    match requirement.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers().is_some_and(|(value, bound)| value > bound),
        "Lt" => numbers().is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
}

fn compare(a: &str, b: &str) -> Option<(i64, i64)> {
    Some((a.parse().ok()?, b.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::{
            apps::v1::DaemonSetSpec,
            core::v1::{NodeAffinity, NodeSelector, NodeSpec, PodTemplateSpec},
        },
        apimachinery::pkg::apis::meta::v1::ObjectMeta,
    };

    use super::*;

    fn node(labels: &[(&str, &str)], taints: &[(&str, &str)]) -> Node {
        let taint = |(key, effect): &(&str, &str)| Taint {
            key: (*key).to_owned(),
            effect: (*effect).to_owned(),
            ..Taint::default()
        };
        Node {
            metadata: ObjectMeta {
                name: Some("n1".to_owned()),
                labels: Some(
                    labels
                        .iter()
                        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                        .collect(),
                ),
                ..ObjectMeta::default()
            },
            spec: Some(NodeSpec {
                taints: Some(taints.iter().map(taint).collect()),
                ..NodeSpec::default()
            }),
            status: None,
        }
    }

    fn set(spec: PodSpec) -> DaemonSet {
        let template = PodTemplateSpec {
            metadata: None,
            spec: Some(spec),
        };
        DaemonSet {
            spec: Some(DaemonSetSpec {
                template,
                ..DaemonSetSpec::default()
            }),
            ..DaemonSet::default()
        }
    }

    fn decide(spec: PodSpec, node: &Node) -> (bool, bool) {
        let all = tolerations(&spec);
        let Eligibility {
            should_run,
            may_stay,
        } = judge(&set(spec), &all, node);
        (should_run, may_stay)
    }

    fn required(key: &str, operator: &str, values: &[&str]) -> PodSpec {
        let requirement = NodeSelectorRequirement {
            key: key.to_owned(),
            operator: operator.to_owned(),
            values: Some(values.iter().map(|value| (*value).to_owned()).collect()),
        };
        let term = NodeSelectorTerm {
            match_expressions: Some(vec![requirement]),
            match_fields: None,
        };
        let required = NodeSelector {
            node_selector_terms: vec![term],
        };
        let node_affinity = NodeAffinity {
            required_during_scheduling_ignored_during_execution: Some(required),
            ..NodeAffinity::default()
        };
        let affinity = Affinity {
            node_affinity: Some(node_affinity),
            ..Affinity::default()
        };
        PodSpec {
            affinity: Some(affinity),
            ..PodSpec::default()
        }
    }

    #[test]
    fn a_plain_daemon_runs_on_a_plain_node() {
        assert_eq!(decide(PodSpec::default(), &node(&[], &[])), (true, true));
    }

    #[test]
    fn a_node_that_does_not_match_takes_no_daemon_and_keeps_none() {
        let selector = Some([("os".to_owned(), "windows".to_owned())].into());
        let windows = PodSpec {
            node_selector: selector,
            ..PodSpec::default()
        };
        assert_eq!(
            decide(windows.clone(), &node(&[("os", "linux")], &[])),
            (false, false)
        );
        assert_eq!(
            decide(windows, &node(&[("os", "windows")], &[])),
            (true, true)
        );
        let named = PodSpec {
            node_name: Some("n2".to_owned()),
            ..PodSpec::default()
        };
        assert_eq!(decide(named, &node(&[], &[])), (false, false));
    }

    #[test]
    fn required_affinity_understands_every_operator() {
        let node = node(&[("size", "8")], &[]);
        for (operator, values, expected) in [
            ("In", &["4", "8"][..], true),
            ("In", &["4"], false),
            ("NotIn", &["4"], true),
            ("NotIn", &["8"], false),
            ("Exists", &[], true),
            ("DoesNotExist", &[], false),
            ("Gt", &["7"], true),
            ("Gt", &["8"], false),
            ("Lt", &["9"], true),
            ("Lt", &["x"], false),
        ] {
            assert_eq!(
                decide(required("size", operator, values), &node).0,
                expected,
                "{operator} {values:?}"
            );
        }
        assert!(decide(required("absent", "NotIn", &["8"]), &node).0);
        assert!(decide(required("absent", "DoesNotExist", &[]), &node).0);
    }

    #[test]
    fn a_term_without_requirements_matches_nothing() {
        let mut spec = required("size", "Exists", &[]);
        let affinity = spec
            .affinity
            .as_mut()
            .and_then(|affinity| affinity.node_affinity.as_mut());
        let required = affinity.and_then(|affinity| {
            affinity
                .required_during_scheduling_ignored_during_execution
                .as_mut()
        });
        required.expect("set above").node_selector_terms = vec![NodeSelectorTerm::default()];
        assert_eq!(decide(spec, &node(&[("size", "8")], &[])), (false, false));
    }

    #[test]
    fn an_untolerated_no_schedule_taint_keeps_new_pods_out_and_lets_old_ones_stay() {
        assert_eq!(
            decide(PodSpec::default(), &node(&[], &[("os", "NoSchedule")])),
            (false, true)
        );
        assert_eq!(
            decide(PodSpec::default(), &node(&[], &[("os", "NoExecute")])),
            (false, false)
        );
        assert_eq!(
            decide(
                PodSpec::default(),
                &node(&[], &[("os", "PreferNoSchedule")])
            ),
            (true, true)
        );
    }

    #[test]
    fn daemons_run_on_nodes_in_trouble() {
        let troubles = [
            ("node.kubernetes.io/not-ready", "NoExecute"),
            ("node.kubernetes.io/unreachable", "NoExecute"),
            ("node.kubernetes.io/disk-pressure", "NoSchedule"),
            ("node.kubernetes.io/unschedulable", "NoSchedule"),
        ];
        assert_eq!(
            decide(PodSpec::default(), &node(&[], &troubles)),
            (true, true)
        );
        let no_network = node(&[], &[HOST_NETWORK]);
        assert_eq!(decide(PodSpec::default(), &no_network), (false, true));
        let on_host = PodSpec {
            host_network: Some(true),
            ..PodSpec::default()
        };
        assert_eq!(decide(on_host, &no_network), (true, true));
    }

    #[test]
    fn default_tolerations_replace_their_like_in_the_template() {
        let seconds = Toleration {
            key: Some("node.kubernetes.io/not-ready".to_owned()),
            operator: Some("Exists".to_owned()),
            effect: Some("NoExecute".to_owned()),
            toleration_seconds: Some(30),
            ..Toleration::default()
        };
        let spec = PodSpec {
            tolerations: Some(vec![seconds]),
            ..PodSpec::default()
        };
        let all = tolerations(&spec);
        assert_eq!(all.len(), 6);
        assert!(
            all.iter()
                .all(|toleration| toleration.toleration_seconds.is_none())
        );
    }
}
