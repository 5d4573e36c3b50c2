//! The extended resources that a pod requests, with the device requests that replace them where a DeviceClass stands for the resource,
//! and the containers that use these device requests (kube-scheduler: DynamicResources' `createRequestsAndMappings`).
//!
//! Invariant: resources are in the order of their names, and each one's requests and users do not depend on the others'.

use std::collections::BTreeMap;

use crate::intern::{Interner, Symbol};
use crate::model::{PodTemplate, Quantity};
use crate::resources::Amounts;

/// Prefix of the implicit extended resource of a DeviceClass: prefix and class name together are a resource name that always stands for
/// the class.
pub(crate) const CLASS_PREFIX: &str = "deviceclass.resource.kubernetes.io/";

/// The maximum number of requests in one ResourceClaim.
const MOST_REQUESTS: usize = 32;

/// One extended resource of a pod, with the device requests that can replace it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExtendedResource {
    pub(crate) name: Symbol,
    /// The device requests, in the order of the containers.
    pub(crate) requests: Box<[ExtendedRequest]>,
    /// Which container uses which request; containers that run until the pod ends come first.
    pub(crate) uses: Box<[RequestUse]>,
}

/// A device request that is generated for an extended resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExtendedRequest {
    pub(crate) name: Box<str>,
    pub(crate) count: i64,
}

/// A container and the request whose devices it gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestUse {
    /// The container's index in the list of init containers followed by containers.
    pub(crate) container: usize,
    pub(crate) request: Box<str>,
}

/// The amount of one resource that one container requests.
struct ContainerRequest {
    container: usize,
    /// The index of the resource among all requests of the container; it is part of the generated request name.
    place: usize,
    count: i64,
}

impl ContainerRequest {
    fn extended_request(&self, count: i64) -> ExtendedRequest {
        ExtendedRequest {
            name: format!("container-{}-request-{}", self.container, self.place).into(),
            count,
        }
    }
}

impl ExtendedResource {
    /// Returns the extended resources with a non-zero amount in `asked`, the total requests of the pod, sorted by name.
    pub(crate) fn all(template: &PodTemplate, asked: &Amounts, names: &Interner) -> Box<[Self]> {
        let asked = asked.scalars.iter().filter(|(_, amount)| *amount != 0);
        let asked = asked.map(|(name, _)| (names.text(*name), *name));
        let mut extended: Vec<_> = asked.filter(|(text, _)| is_extended(text)).collect();
        if extended.is_empty() {
            return Box::default();
        }
        extended.sort_unstable();
        let is_short = |container: usize| {
            let init = template.init_containers.get(container);
            init.is_some_and(|init| !init.is_sidecar())
        };
        let mut asks = container_requests(template);
        let all = extended.into_iter().map(|(text, name)| {
            let (short, staying): (Vec<ContainerRequest>, Vec<ContainerRequest>) = asks
                .remove(text)
                .unwrap_or_default()
                .into_iter()
                .partition(|ask| is_short(ask.container));
            Self::of(name, &short, &staying)
        });
        all.collect()
    }

    /// Builds the device requests of one resource. `short` has the requests of init containers that end before the other containers
    /// start, `staying` those of sidecars and containers.
    fn of(name: Symbol, short: &[ContainerRequest], staying: &[ContainerRequest]) -> Self {
        let requests: Vec<ExtendedRequest> = staying
            .iter()
            .map(|ask| ask.extended_request(ask.count))
            .collect();
        let own = |ask: &ContainerRequest, request: &ExtendedRequest| RequestUse {
            container: ask.container,
            request: request.name.clone(),
        };
        let mut uses: Vec<RequestUse> = staying
            .iter()
            .zip(&requests)
            .map(|(ask, request)| own(ask, request))
            .collect();
        // `available[i]` is the number of devices that the staying containers from index `i` on request together.
        let mut available = vec![0_i64; staying.len() + 1];
        for (at, ask) in staying.iter().enumerate().rev() {
            available[at] = available[at + 1].saturating_add(ask.count);
        }
        // Init containers run one after another and end before later containers start, so they reuse the devices of those later
        // containers. What is missing beyond that is requested once, for the init container that misses most.
        let mut largest: Option<ExtendedRequest> = None;
        let mut of_largest = Vec::new();
        for ask in short {
            let first = staying.partition_point(|other| other.container < ask.container);
            // A claim with more requests than this is refused, so its uses are never read.
            if requests.len() <= MOST_REQUESTS {
                let mut missing = ask.count;
                for (other, request) in staying.iter().zip(&requests).skip(first) {
                    // Later containers' devices are taken one after the other until the count is covered.
                    if missing > 0 {
                        uses.push(own(ask, request));
                        missing = missing.saturating_sub(other.count);
                    }
                }
            }
            if available[first] < ask.count {
                let extended_request = ask.extended_request(ask.count - available[first]);
                of_largest.push(uses.len());
                uses.push(own(ask, &extended_request));
                if largest
                    .as_ref()
                    .is_none_or(|known| known.count < extended_request.count)
                {
                    largest = Some(extended_request);
                }
            }
        }
        // They run one after another, so all of them share the devices of the one that misses most.
        if let Some(largest) = &largest {
            for at in of_largest {
                uses[at].request = largest.name.clone();
            }
        }
        ExtendedResource {
            name,
            requests: largest.into_iter().chain(requests).collect(),
            uses: uses.into(),
        }
    }
}

/// Returns the requests of the containers by extended resource, in the order of the containers. Requests that are not a positive whole
/// number are left out.
fn container_requests(template: &PodTemplate) -> BTreeMap<&str, Vec<ContainerRequest>> {
    let mut asks: BTreeMap<&str, Vec<ContainerRequest>> = BTreeMap::new();
    let containers = template.init_containers.iter().chain(&template.containers);
    for (container, own) in containers.enumerate() {
        for (place, (name, quantity)) in own.resources.requests.iter().enumerate() {
            let count = quantity.value();
            // A fraction of a device cannot be allocated; such a request stays an ordinary resource.
            let is_whole = Quantity::from_units(count) == *quantity;
            if count > 0 && is_whole && is_extended(name) {
                asks.entry(name).or_default().push(ContainerRequest {
                    container,
                    place,
                    count,
                });
            }
        }
    }
    asks
}

/// Returns whether a DeviceClass can stand for a resource (kube-scheduler: `IsDRAExtendedResourceName`).
pub(crate) fn is_extended(name: &str) -> bool {
    let extended =
        name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.");
    extended || name.starts_with(CLASS_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::requests::Requests;
    use crate::model::{Container, Resources, RestartPolicy};

    fn container(requests: &[(&str, &str)]) -> Container {
        let requests = requests.iter().map(|(name, amount)| {
            let amount = amount.parse().expect("a quantity");
            ((*name).to_owned(), amount)
        });
        Container {
            resources: Resources {
                requests: requests.collect(),
                ..Resources::default()
            },
            ..Container::default()
        }
    }

    fn sidecar(requests: &[(&str, &str)]) -> Container {
        Container {
            restart_policy: Some(RestartPolicy::Always),
            ..container(requests)
        }
    }

    /// Returns all requests as `NAME=COUNT` and all uses as `CONTAINER:NAME`, by resource.
    fn of(init: Vec<Container>, main: Vec<Container>) -> Vec<(String, String)> {
        let template = PodTemplate {
            init_containers: init,
            containers: main,
            ..PodTemplate::default()
        };
        let mut names = Interner::default();
        let asked = Requests::of(&template, &mut names).expect("valid").real;
        let all = ExtendedResource::all(&template, &asked, &names);
        let short = |name: &str| name.replace("container-", "").replace("-request-", ".");
        let all = all.iter().map(|own| {
            let requests = own.requests.iter();
            let requests: Vec<_> = requests
                .map(|own| format!("{}={}", short(&own.name), own.count))
                .collect();
            let uses = own.uses.iter();
            let uses: Vec<_> = uses
                .map(|own| format!("{}:{}", own.container, short(&own.request)))
                .collect();
            (requests.join(" "), uses.join(" "))
        });
        all.collect()
    }

    fn pair(requests: &str, uses: &str) -> (String, String) {
        (requests.to_owned(), uses.to_owned())
    }

    #[test]
    fn requests_are_named_after_the_container_and_the_place_of_the_resource_in_it() {
        let both = container(&[
            ("cpu", "1"),
            ("d.com/b", "2"),
            ("d.com/a", "1"),
            ("d.com/none", "0"),
        ]);
        assert_eq!(
            of(vec![], vec![both]),
            [pair("0.1=1", "0:0.1"), pair("0.2=2", "0:0.2")]
        );
        let apart = vec![
            container(&[("d.com/a", "1")]),
            container(&[("d.com/b", "2")]),
        ];
        assert_eq!(
            of(vec![], apart),
            [pair("0.0=1", "0:0.0"), pair("1.0=2", "1:1.0")]
        );
        let implicit = container(&[("deviceclass.resource.kubernetes.io/gpu", "1")]);
        assert_eq!(of(vec![], vec![implicit]), [pair("0.0=1", "0:0.0")]);
    }

    #[test]
    fn native_resources_and_parts_of_a_device_are_for_no_class() {
        let native = [
            ("cpu", "1"),
            ("hugepages-2Mi", "4Mi"),
            ("kubernetes.io/batch-cpu", "1"),
            ("requests.d.com/a", "1"),
        ];
        assert_eq!(of(vec![], vec![container(&native)]), []);
        let part = container(&[("d.com/a", "500m")]);
        assert_eq!(of(vec![], vec![part]), [pair("", "")]);
    }

    #[test]
    fn of_init_containers_the_largest_request_counts() {
        let gpus = |count| container(&[("d.com/a", count)]);
        assert_eq!(
            of(
                vec![gpus("1"), gpus("3"), gpus("3"), gpus("2")],
                vec![container(&[])]
            ),
            [pair("1.0=3", "0:1.0 1:1.0 2:1.0 3:1.0")]
        );
    }

    #[test]
    fn init_containers_have_what_later_ones_keep_and_ask_for_the_rest() {
        let gpus = |count| container(&[("d.com/a", count)]);
        assert_eq!(
            of(vec![gpus("1")], vec![gpus("1"), gpus("1")]),
            [pair("1.0=1 2.0=1", "1:1.0 2:2.0 0:1.0")],
            "all of it"
        );
        assert_eq!(
            of(vec![gpus("4")], vec![gpus("1"), gpus("2")]),
            [pair("0.0=1 1.0=1 2.0=2", "1:1.0 2:2.0 0:1.0 0:2.0 0:0.0")],
            "one more"
        );
        let sidecar = sidecar(&[("d.com/a", "1")]);
        assert_eq!(
            of(vec![gpus("1"), sidecar, gpus("2")], vec![container(&[])]),
            [pair("2.0=2 1.0=1", "1:1.0 0:1.0 2:2.0")],
            "what a sidecar that runs already has is not available"
        );
    }
}
