//! Computes the quality-of-service class of a pod (`pkg/apis/core/helper/qos`).

use mullion_kube_text::quantity::Quantity;
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::totals::quantity;

const COMPUTE: [&str; 2] = ["cpu", "memory"];

/// Returns `Guaranteed`, `Burstable` or `BestEffort`, computed from the spec alone.
pub fn class(spec: &Value) -> &'static str {
    let mut requests = Sums::default();
    let mut limits = Sums::default();
    let mut all_limited = true;
    let pod_level = spec.get("resources").filter(|level| {
        level
            .entries("requests")
            .chain(level.entries("limits"))
            .next()
            .is_some()
    });
    // Pod-level resources decide alone, whatever the containers request.
    if let Some(level) = pod_level {
        requests.add(level, "requests");
        if level.entries("limits").next().is_some() {
            all_limited = limits.add(level, "limits") == COMPUTE.len();
        }
    } else {
        for container in ["containers", "initContainers"]
            .into_iter()
            .flat_map(|list| spec.items(list))
        {
            let Some(requirements) = container.get("resources") else {
                all_limited = false;
                continue;
            };
            requests.add(requirements, "requests");
            all_limited &= limits.add(requirements, "limits") == COMPUTE.len();
        }
    }
    if requests.is_empty() && limits.is_empty() {
        "BestEffort"
    } else if all_limited && requests == limits {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

/// The sums of cpu and memory; `None` for a resource without any amount.
#[derive(Default, PartialEq)]
struct Sums([Option<Quantity>; 2]);

impl Sums {
    /// Adds a resource list, and returns the number of compute resources with a positive amount.
    fn add(&mut self, requirements: &Value, list: &str) -> usize {
        let Some(list) = requirements.get(list) else {
            return 0;
        };
        let mut named = 0;
        for (sum, name) in self.0.iter_mut().zip(COMPUTE) {
            let Some(amount) = list
                .field(name)
                .map(quantity)
                // An amount of zero counts as not set (ComputePodQOS).
                .filter(|amount| amount.nano() > 0)
            else {
                continue;
            };
            named += 1;
            *sum = Some(match sum {
                Some(sum) => sum.plus(&amount),
                None => amount,
            });
        }
        named
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::class;

    #[test]
    fn classes_follow_requests_and_limits() {
        let with = |resources| class(&json!({"containers": [{"resources": resources}]}));
        assert_eq!(with(json!({})), "BestEffort");
        assert_eq!(with(json!({"requests": {"cpu": "0"}})), "BestEffort");
        assert_eq!(with(json!({"requests": {"cpu": "1"}})), "Burstable");
        let full = json!({"cpu": "1", "memory": "1Gi"});
        assert_eq!(
            with(json!({"limits": full, "requests": {"cpu": "1", "memory": "1024Mi"}})),
            "Guaranteed"
        );
        assert_eq!(
            with(
                json!({"limits": {"hugepages-2Mi": "4Mi", "memory": "1Gi"}, "requests": {"memory": "1Gi"}})
            ),
            "Burstable"
        );
    }

    #[test]
    fn one_container_without_limits_makes_the_pod_burstable() {
        let full = json!({"cpu": "1", "memory": "1Gi"});
        let guaranteed = json!({"resources": {"limits": full, "requests": full}});
        assert_eq!(
            class(&json!({"containers": [guaranteed, {"resources": {}}]})),
            "Burstable"
        );
        assert_eq!(class(&json!({"containers": [guaranteed]})), "Guaranteed");
    }

    #[test]
    fn pod_level_resources_decide_alone() {
        let full = json!({"cpu": "1", "memory": "1Gi"});
        assert_eq!(
            class(&json!({"resources": {"limits": full, "requests": full}, "containers": [{}]})),
            "Guaranteed"
        );
    }
}
