//! The node features that pods can require and kubelets declare, as far as the scheduler checks them (k8s.io/component-helpers:
//! nodedeclaredfeatures).

use crate::model::{Container, PodTemplate};

/// A set of the features that pods can require in Kubernetes 1.36, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Features(u8);

/// The names of the features, by bit.
const NAMES: [&str; 1] = ["RestartAllContainersOnContainerExits"];

impl Features {
    /// All features. A node that is yet to be bought is assumed to declare them all.
    pub(crate) const ALL: Features = Features(1);

    /// Returns the features that a node declares; names that no pod can require are ignored.
    pub(crate) fn declared(names: &[String]) -> Self {
        let known = NAMES.iter().enumerate();
        let bits = known.filter(|(_, known)| names.iter().any(|name| name == *known));
        Features(bits.fold(0, |bits, (bit, _)| bits | 1 << bit))
    }

    /// Returns the features that a pod requires.
    pub(crate) fn needed(template: &PodTemplate) -> Self {
        let restarts_all = |container: &Container| {
            let mut rules = container.restart_policy_rules.iter();
            rules.any(|rule| rule.action == "RestartAllContainers")
        };
        let mut containers = template.containers.iter().chain(&template.init_containers);
        Features(u8::from(containers.any(restarts_all)))
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the name of the first feature of this set that `there` lacks.
    pub(crate) fn first_missing(self, there: Features) -> Option<&'static str> {
        let missing = self.0 & !there.0;
        NAMES.get(missing.trailing_zeros() as usize).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{NodeSpec, PodSpec, RestartRule};
    use crate::{Cluster, Decision, Options};

    #[test]
    fn a_pod_that_restarts_as_a_whole_goes_where_the_kubelet_can_do_that() {
        let mut cluster = Cluster::new(Options::default());
        for (name, declares) in [("old", &[][..]), ("other", &["Other"]), ("new", &NAMES)] {
            let mut node = NodeSpec::named(name);
            node.allocatable
                .insert("pods".into(), "1".parse().expect("a quantity"));
            node.declared_features = declares.iter().map(|name| (*name).to_owned()).collect();
            cluster.add_node(&node).expect("a node");
        }
        let rule = RestartRule {
            action: "RestartAllContainers".into(),
        };
        let container = Container {
            restart_policy_rules: vec![rule],
            ..Container::default()
        };
        let mut pod = PodSpec {
            name: "a".into(),
            ..PodSpec::default()
        };
        pod.template.init_containers.push(container);
        let class = cluster.pod_class(&pod.template).expect("a class");
        let new = cluster.node("new").expect("it is there");
        assert_eq!(cluster.schedule(class, 0), Decision::Node(new));
        cluster.bind(&pod, "new").expect("it fits");
        let Decision::Unschedulable(refused) = cluster.schedule(class, 0) else {
            panic!("there is no second place");
        };
        assert_eq!(
            cluster.message(&refused),
            "0/3 nodes are available: 1 Too many pods, 2 node(s) didn't match Pod's required features."
        );
        // A pod that requires no feature fits a node that declares none.
        let class = cluster.pod_class(&Default::default()).expect("a class");
        assert!(matches!(cluster.schedule(class, 0), Decision::Node(_)));
    }
}
