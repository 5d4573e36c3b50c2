//! What a pod asks for (component-helpers `resource.PodRequests`).
//!
//! Per resource: the larger of all containers and sidecars together, and any init container beside the sidecars
//! started before it; then pod-level requests replace cpu, memory and huge pages; then overhead is added.

use crate::error::ModelError;
use crate::intern::Interner;
use crate::model::{Container, PodTemplate, Quantity, ResourceMap};
use crate::resources::Amounts;

/// What the scorers assume for a container that asks for no CPU.
const DEFAULT_CPU_MILLI: i64 = 100;
/// What the scorers assume for a container that asks for no memory.
const DEFAULT_MEMORY_BYTES: i64 = 200 << 20;

/// Real requests, and those with defaults for containers that ask for nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Requests {
    pub(crate) real: Amounts,
    pub(crate) nonzero_cpu_milli: i64,
    pub(crate) nonzero_memory_bytes: i64,
}

/// Which native resources get a default where a container has no request.
#[derive(Clone, Copy, Default)]
struct Defaults {
    cpu: bool,
    memory: bool,
}

impl Requests {
    pub(crate) fn of(template: &PodTemplate, names: &mut Interner) -> Result<Self, ModelError> {
        let pod_level = &template.resources.requests;
        let real = sum(template, Defaults::default(), names)?;
        let pod_level_set = pod_level.keys().any(|name| is_pod_level(name));
        let asked = |name: &str| pod_level_set && is_asked(template, name);
        let defaults = Defaults {
            cpu: !asked("cpu"),
            memory: !asked("memory"),
        };
        let nonzero = sum(template, defaults, names)?;
        Ok(Requests {
            real,
            nonzero_cpu_milli: nonzero.cpu_milli,
            nonzero_memory_bytes: nonzero.memory_bytes,
        })
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

fn sum(
    template: &PodTemplate,
    defaults: Defaults,
    names: &mut Interner,
) -> Result<Amounts, ModelError> {
    let mut read = |requests: &ResourceMap| Amounts::read(requests, "pod", names);
    let mut container = |container: &Container| -> Result<Amounts, ModelError> {
        let requests = &container.resources.requests;
        let mut amounts = read(requests)?;
        if defaults.cpu && !requests.contains_key("cpu") {
            amounts.cpu_milli = DEFAULT_CPU_MILLI;
        }
        if defaults.memory && !requests.contains_key("memory") {
            amounts.memory_bytes = DEFAULT_MEMORY_BYTES;
        }
        Ok(amounts)
    };
    let mut total = Amounts::default();
    for main in &template.containers {
        total.add(&container(main)?);
    }
    let mut sidecars = Amounts::default();
    let mut starting = Amounts::default();
    for init in &template.init_containers {
        let mut step = container(init)?;
        if init.is_sidecar() {
            total.add(&step);
            sidecars.add(&step);
            step = sidecars.clone();
        } else {
            step.add(&sidecars);
        }
        starting.maximize(&step);
    }
    total.maximize(&starting);
    let pod_level: std::collections::BTreeMap<String, Quantity> = template
        .resources
        .requests
        .iter()
        .filter(|(name, _)| is_pod_level(name))
        .map(|(name, quantity)| (name.clone(), *quantity))
        .collect();
    let replacing = read(&pod_level)?;
    if pod_level.contains_key("cpu") {
        total.cpu_milli = replacing.cpu_milli;
    }
    if pod_level.contains_key("memory") {
        total.memory_bytes = replacing.memory_bytes;
    }
    for (name, amount) in &replacing.scalars {
        match total.scalars.iter_mut().find(|scalar| scalar.0 == *name) {
            Some(scalar) => scalar.1 = *amount,
            None => {
                total.scalars.push((*name, *amount));
                total.scalars.sort_unstable_by_key(|scalar| scalar.0);
            }
        }
    }
    total.add(&read(&template.overhead)?);
    total.pods = 0;
    Ok(total)
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
