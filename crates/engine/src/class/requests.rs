//! Computes the requests of a pod (component-helpers `resource.PodRequests`).
//!
//! Per resource, the result is the larger of two sums: all containers and sidecars, and any init container with the sidecars
//! that start before it. Pod-level requests then replace cpu, memory and huge pages, and overhead is added.

use crate::error::ModelError;
use crate::intern::{Interner, Symbol};
use crate::model::{Container, PodTemplate, Quantity, ResourceMap};
use crate::resources::Amounts;

/// The cpu that scorers assume for a container without a cpu request.
const DEFAULT_CPU_MILLI: i64 = 100;
/// The memory that scorers assume for a container without a memory request.
const DEFAULT_MEMORY_BYTES: i64 = 200 << 20;

/// The real requests of a pod, and those with defaults for containers without requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Requests {
    pub(crate) real: Amounts,
    /// The non-zero requests that a node sums over its pods; pod-level requests get no default
    /// (`getNonMissingContainerRequests`).
    pub(crate) nonzero_cpu_milli: i64,
    pub(crate) nonzero_memory_bytes: i64,
    /// The requests that NodeResourcesFit's score adds for the pod itself: those of its containers, always with defaults, and its
    /// overhead. Pod-level requests do not count there, because kube-scheduler's scorer has that feature off
    /// (`calculatePodResourceRequest`; decision 16).
    pub(crate) own_cpu_milli: i64,
    pub(crate) own_memory_bytes: i64,
    /// The huge pages of its containers, if the pod has pod-level requests for some, which `real` has.
    own_pages: Option<Box<[(Symbol, i64)]>>,
}

/// Which requests are summed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    /// Pod-level requests where there are some, else the containers'.
    Pod,
    /// The containers' only.
    Containers,
}

/// Which native resources get a default in containers without a request.
#[derive(Clone, Copy, Default)]
struct Defaults {
    cpu: bool,
    memory: bool,
}

impl Requests {
    pub(crate) fn of(template: &PodTemplate, names: &mut Interner) -> Result<Self, ModelError> {
        let containers = template.containers.iter().chain(&template.init_containers);
        let asked = containers.map(|container| &container.resources.requests);
        // The API server refuses negative amounts; here they would free room on a node.
        for map in asked.chain([&template.resources.requests, &template.overhead]) {
            Amounts::refuse_negative(map, "pod")?;
        }
        let pod_level = template.resources.requests.keys();
        let pod_level_set = pod_level.into_iter().any(|name| is_pod_level(name));
        let mut sum =
            |level, defaults| Amounts::read(&sum(template, level, defaults), "pod", names);
        let real = sum(Level::Pod, Defaults::default())?;
        let all = Defaults {
            cpu: true,
            memory: true,
        };
        let own = sum(Level::Containers, all)?;
        // Without pod-level requests the two sums are the same.
        let nonzero = if pod_level_set {
            sum(
                Level::Pod,
                Defaults {
                    cpu: !is_asked(template, "cpu"),
                    memory: !is_asked(template, "memory"),
                },
            )?
        } else {
            own.clone()
        };
        // Only pod-level huge pages make a difference. They are rare, so the second list is stored only then.
        let differs = own.scalars != real.scalars;
        Ok(Requests {
            own_pages: differs.then(|| own.scalars.into()),
            real,
            nonzero_cpu_milli: nonzero.cpu_milli,
            nonzero_memory_bytes: nonzero.memory_bytes,
            own_cpu_milli: own.cpu_milli,
            own_memory_bytes: own.memory_bytes,
        })
    }

    /// Returns the amount of an extended resource or huge pages that NodeResourcesFit's score counts.
    pub(crate) fn own_scalar(&self, name: Symbol) -> i64 {
        let Some(own) = &self.own_pages else {
            return self.real.scalar(name);
        };
        let found = own.binary_search_by_key(&name, |scalar| scalar.0);
        found.map_or(0, |index| own[index].1)
    }
}

fn is_pod_level(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with("hugepages-")
}

fn is_asked(template: &PodTemplate, name: &str) -> bool {
    let containers = template.containers.iter().chain(&template.init_containers);
    template.resources.requests.contains_key(name)
        || template.overhead.contains_key(name)
        || containers
            .into_iter()
            .any(|container| container.resources.requests.contains_key(name))
}

/// Sums the quantities exactly; rounding comes later.
fn sum(template: &PodTemplate, level: Level, defaults: Defaults) -> ResourceMap {
    let container = |container: &Container| {
        let mut requests = container.resources.requests.clone();
        if defaults.cpu {
            let cpu = requests.entry("cpu".to_owned());
            cpu.or_insert(Quantity::from_milli(DEFAULT_CPU_MILLI));
        }
        if defaults.memory {
            let memory = requests.entry("memory".to_owned());
            memory.or_insert(Quantity::from_units(DEFAULT_MEMORY_BYTES));
        }
        requests
    };
    let mut total = ResourceMap::new();
    for main in &template.containers {
        add(&mut total, &container(main));
    }
    let mut sidecars = ResourceMap::new();
    let mut starting = ResourceMap::new();
    for init in &template.init_containers {
        let mut step = container(init);
        // A sidecar keeps running, so it counts with the containers, and while pods start, with the sidecars before it.
        if init.is_sidecar() {
            add(&mut total, &step);
            add(&mut sidecars, &step);
            step.clone_from(&sidecars);
        } else {
            add(&mut step, &sidecars);
        }
        maximize(&mut starting, &step);
    }
    // Per resource: the containers may need more cpu while an init container needs more memory.
    maximize(&mut total, &starting);
    let pod_level = template.resources.requests.iter();
    let pod_level = pod_level.filter(|_| level == Level::Pod);
    // Only these resources may be requested at pod level; others stay the sum of the containers.
    for (name, quantity) in pod_level.filter(|(name, _)| is_pod_level(name)) {
        total.insert(name.clone(), *quantity);
    }
    add(&mut total, &template.overhead);
    // Every pod takes one slot; a request for `pods` changes nothing.
    total.remove("pods");
    total
}

fn add(sum: &mut ResourceMap, more: &ResourceMap) {
    for (name, quantity) in more {
        let known = sum.entry(name.clone()).or_default();
        *known = known.saturating_add(*quantity);
    }
}

fn maximize(most: &mut ResourceMap, other: &ResourceMap) {
    for (name, quantity) in other {
        let known = most.entry(name.clone()).or_insert(*quantity);
        *known = (*known).max(*quantity);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Resources, RestartPolicy};

    fn container(cpu: &str) -> Container {
        let requests = ResourceMap::from([("cpu".to_owned(), cpu.parse().expect("quantity"))]);
        Container {
            resources: Resources {
                requests,
                ..Resources::default()
            },
            ..Container::default()
        }
    }

    fn sidecar(cpu: &str) -> Container {
        Container {
            restart_policy: Some(RestartPolicy::Always),
            ..container(cpu)
        }
    }

    fn of(template: &PodTemplate) -> Requests {
        Requests::of(template, &mut Interner::default()).expect("valid")
    }

    #[test]
    fn init_containers_count_by_their_peak_and_sidecars_by_their_sum() {
        let mut template = PodTemplate {
            containers: vec![container("1")],
            ..PodTemplate::default()
        };
        template.init_containers = vec![container("8")];
        assert_eq!(of(&template).real.cpu_milli, 8000);
        template.init_containers = vec![sidecar("4"), container("500m")];
        template.containers = vec![container("5")];
        assert_eq!(of(&template).real.cpu_milli, 9000);
        template.init_containers = vec![sidecar("4"), container("6")];
        assert_eq!(of(&template).real.cpu_milli, 10_000);
    }

    #[test]
    fn pod_level_requests_replace_and_overhead_adds() {
        let mut template = PodTemplate {
            containers: vec![container("5")],
            ..PodTemplate::default()
        };
        template
            .resources
            .requests
            .insert("cpu".into(), Quantity::from_units(2));
        template
            .overhead
            .insert("cpu".into(), Quantity::from_milli(250));
        let requests = of(&template);
        assert_eq!(requests.real.cpu_milli, 2250);
        assert_eq!(requests.nonzero_cpu_milli, 2250);
        assert_eq!(requests.nonzero_memory_bytes, DEFAULT_MEMORY_BYTES);
    }

    #[test]
    fn a_pod_that_asks_as_a_whole_weighs_defaults_for_itself_only() {
        let mut template = PodTemplate {
            containers: vec![container("500m"), Container::default()],
            ..PodTemplate::default()
        };
        let memory = ("memory".to_owned(), Quantity::from_units(1 << 30));
        template.resources.requests = ResourceMap::from([memory]);
        let requests = of(&template);
        assert_eq!(requests.own_cpu_milli, 600);
        assert_eq!(requests.nonzero_cpu_milli, 500);
        assert_eq!(requests.nonzero_memory_bytes, 1 << 30);
        assert_eq!(requests.own_memory_bytes, 2 * DEFAULT_MEMORY_BYTES);
    }

    #[test]
    fn fractions_are_rounded_up_once() {
        let mut parts = container("1");
        let memory = "0.1Gi".parse().expect("a quantity");
        parts.resources.requests.insert("memory".into(), memory);
        let template = PodTemplate {
            containers: vec![parts.clone(), parts.clone(), parts],
            ..PodTemplate::default()
        };
        assert_eq!(of(&template).real.memory_bytes, 322_122_548);
    }

    #[test]
    fn containers_without_requests_weigh_a_default_in_scores_only() {
        let template = PodTemplate {
            containers: vec![Container::default(); 2],
            ..PodTemplate::default()
        };
        let requests = of(&template);
        assert_eq!(requests.real, Amounts::default());
        assert_eq!(requests.nonzero_cpu_milli, 200);
        assert_eq!(requests.nonzero_memory_bytes, 400 << 20);
    }

    #[test]
    fn a_negative_request_is_refused() {
        let template = PodTemplate {
            containers: vec![container("-1")],
            ..PodTemplate::default()
        };
        let refused = Requests::of(&template, &mut Interner::default());
        assert!(matches!(refused, Err(ModelError::NegativeQuantity { .. })));
    }
}
