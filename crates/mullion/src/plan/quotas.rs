//! Holds the pods that a plan would create against the quotas of their namespaces, as kube-apiserver's admission does one by one.
//!
//! What is used starts from the status of each quota, or from the pods that are there if nobody has counted yet. Pods that the plan replaces
//! or removes give back what they use.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use mullion_engine::model::PodSpec;
use mullion_kinds::{
    quota::{
        Amounts, CountedKind,
        room::{self, QuotaError},
        scopes,
    },
    request::NoObjects,
};
use mullion_kube_text::quantity::Quantity;
use rustc_hash::FxHashMap;
use serde::Serialize;
use serde_json::{Value, json};

use super::question;
use crate::why::{kinds::QUOTA, state::State};

/// Pods that the API server would refuse for the same reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct RefusedPods {
    pub(super) pods: Vec<String>,
    /// kube-apiserver's words, as in `exceeded quota: team, requested: pods=1, used: pods=4, limited: pods=4`.
    pub(super) reason: String,
}

/// The quotas of a cluster, and what is used of them so far.
#[derive(Clone)]
pub(crate) struct Quotas {
    /// The quotas of each namespace, by name.
    by_namespace: BTreeMap<String, Vec<Value>>,
    now: Timestamp,
}

impl Quotas {
    /// Reads the quotas of a state. Where a quota does not say what is used, the state must keep its pods unabridged.
    pub(crate) fn of(state: &State) -> Self {
        let mut quotas = Quotas {
            by_namespace: BTreeMap::new(),
            now: Timestamp::now(),
        };
        // Objects of one kind are sorted by namespace and name.
        for quota in state.objects(QUOTA) {
            let home = namespace(quota);
            let mut quota = json!({
                "metadata": quota["metadata"],
                "spec": quota["spec"],
                "status": {"hard": quota["spec"]["hard"], "used": quota["status"]["used"]},
            });
            quotas.count_missing(&mut quota, state, &home);
            quotas.by_namespace.entry(home).or_default().push(quota);
        }
        quotas
    }

    /// Returns whether there are no quotas.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_namespace.is_empty()
    }

    /// Counts what the pods of a namespace use of those limits of a quota for which the status does not say it.
    fn count_missing(&self, quota: &mut Value, state: &State, home: &str) {
        let status = &quota["status"];
        let limits = status["hard"].as_object().into_iter().flatten();
        let missing = limits
            .map(|(name, _)| name.as_str())
            .filter(|name| status["used"][name].is_null());
        let missing = pods().limits(&NoObjects, missing);
        let mut used: Amounts = missing
            .into_iter()
            .map(|name| (name.to_owned(), Quantity::from_integer(0)))
            .collect();
        if used.is_empty() {
            return;
        }
        let own = state.objects("Pod").filter(|pod| namespace(pod) == home);
        for pod in own.filter(|pod| scopes::contain(quota, &pods(), pod)) {
            for (name, amount) in self.amounts(pod) {
                used.entry(name).and_modify(|sum| *sum = sum.plus(&amount));
            }
        }
        room::take(quota, &used);
    }

    /// Returns what a pod uses.
    fn amounts(&self, pod: &Value) -> Amounts {
        let mut amounts = pods().used_by(&NoObjects, pod, self.now);
        amounts.retain(|_, amount| amount.nano() > 0);
        amounts
    }

    /// Counts a new pod.
    ///
    /// # Errors
    /// A quota has no room for the pod, in kube-apiserver's words; nothing is counted then.
    pub(crate) fn take(&mut self, pod: &Value) -> Result<(), QuotaError> {
        // All quotas are asked before any of them counts the pod.
        let taken = self.asked(pod)?;
        let quotas = self.by_namespace.get_mut(&namespace(pod));
        for (quota, amounts) in quotas.into_iter().flatten().zip(&taken) {
            room::take(quota, amounts);
        }
        Ok(())
    }

    /// Returns what each quota of a new pod's namespace would count of the pod.
    ///
    /// # Errors
    /// A quota has no room for the pod, in kube-apiserver's words.
    pub(crate) fn asked(&self, pod: &Value) -> Result<Vec<Amounts>, QuotaError> {
        let Some(quotas) = self.by_namespace.get(&namespace(pod)) else {
            return Ok(Vec::new());
        };
        let mut counting = Vec::with_capacity(quotas.len());
        for quota in quotas {
            counting.push(room::counts(&NoObjects, quota, &pods(), pod)?);
        }
        let amounts = self.amounts(pod);
        let asked = quotas.iter().zip(counting);
        let asked = asked.map(|(quota, counts)| match counts.then_some(quota) {
            Some(quota) => room::limited(quota, &amounts),
            None => Ok(Amounts::new()),
        });
        asked.collect()
    }

    /// Gives back what an existing pod uses.
    pub(super) fn give_back(&mut self, pod: &Value) {
        let amounts = self.amounts(pod);
        let quotas = self.by_namespace.get_mut(&namespace(pod));
        for quota in quotas.into_iter().flatten() {
            if scopes::contain(quota, &pods(), pod) {
                let hard = quota["status"]["hard"].clone();
                let mut amounts = amounts.clone();
                amounts.retain(|name, _| !hard[name].is_null());
                room::give_back(quota, &amounts);
            }
        }
    }

    /// Separates pods that would be created, in this order, from those that the quotas refuse. `bills` has the pods as the API server would
    /// store them, by their keys.
    pub(super) fn admit<'a>(
        &mut self,
        coming: &'a [PodSpec],
        bills: &FxHashMap<String, Arc<Value>>,
    ) -> (Cow<'a, [PodSpec]>, Vec<RefusedPods>) {
        let mut refused = Vec::new();
        if self.is_empty() {
            return (Cow::Borrowed(coming), refused);
        }
        let mut admitted = Vec::with_capacity(coming.len());
        // A pod that is refused uses nothing, so the next ones like it are refused for the same reason.
        let mut last: Option<(&Arc<Value>, String)> = None;
        for pod in coming {
            let Some(bill) = bills.get(&pod.key()) else {
                admitted.push(pod.clone());
                continue;
            };
            let reason = match last.take().filter(|(same, _)| Arc::ptr_eq(same, bill)) {
                Some((_, reason)) => Some(reason),
                None => self.take(bill).err().map(|why| why.to_string()),
            };
            match &reason {
                None => admitted.push(pod.clone()),
                Some(reason) => add_refused(&mut refused, question::name(pod), reason),
            }
            last = reason.map(|reason| (bill, reason));
        }
        (Cow::Owned(admitted), refused)
    }
}

/// Adds a pod to those that are refused for the same reason.
pub(super) fn add_refused(refused: &mut Vec<RefusedPods>, pod: String, reason: &str) {
    // Pods of one workload follow each other.
    match refused.iter_mut().rfind(|group| group.reason == reason) {
        Some(group) => group.pods.push(pod),
        None => refused.push(RefusedPods {
            pods: vec![pod],
            reason: reason.to_owned(),
        }),
    }
}

fn pods() -> CountedKind<'static> {
    CountedKind::named("", "pods")
}

fn namespace(object: &Value) -> String {
    let namespace = object["metadata"]["namespace"].as_str();
    namespace.unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use mullion_engine::{Cluster, Options};
    use serde_json::value::RawValue;

    use super::*;
    use crate::why::state::Keeps;

    fn quotas(objects: &[Value]) -> Quotas {
        let keeps = Keeps {
            pods: true,
            ..Keeps::default()
        };
        let mut state = State::new(Cluster::new(Options::default())).keeping(keeps);
        for object in objects {
            let raw = RawValue::from_string(object.to_string()).expect("JSON");
            state.add(&raw, "").expect("an object");
        }
        Quotas::of(&state)
    }

    fn taken(quotas: &mut Quotas, pod: &Value) -> Result<(), String> {
        quotas.take(pod).map_err(|why| why.to_string())
    }

    fn quota(hard: Value, status: Value) -> Value {
        json!({
            "kind": "ResourceQuota", "metadata": {"name": "team", "namespace": "shop"},
            "spec": {"hard": hard}, "status": status,
        })
    }

    fn pod(name: &str, cpu: &str) -> Value {
        json!({
            "kind": "Pod", "metadata": {"name": name, "namespace": "shop"},
            "spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]},
        })
    }

    #[test]
    fn pods_add_up_until_a_quota_refuses_one_and_a_smaller_one_may_still_fit() {
        let used = json!({"used": {"requests.cpu": "1", "pods": "1"}});
        let mut quotas = quotas(&[quota(json!({"requests.cpu": "3", "pods": "9"}), used)]);
        assert_eq!(quotas.take(&pod("a", "1500m")), Ok(()));
        let refused = "exceeded quota: team, requested: requests.cpu=1500m, used: requests.cpu=2500m, limited: requests.cpu=3";
        assert_eq!(
            taken(&mut quotas, &pod("b", "1500m")),
            Err(refused.to_owned())
        );
        assert_eq!(quotas.take(&pod("c", "500m")), Ok(()));
        quotas.give_back(&pod("a", "1500m"));
        assert_eq!(quotas.take(&pod("b", "1500m")), Ok(()));
        let mut elsewhere = pod("a", "9");
        elsewhere["metadata"]["namespace"] = json!("other");
        assert_eq!(quotas.take(&elsewhere), Ok(()));
    }

    #[test]
    fn a_quota_that_nobody_has_counted_yet_starts_with_the_pods_that_are_there() {
        let objects = [
            quota(json!({"pods": "2", "configmaps": "5"}), json!(null)),
            pod("a", "1"),
        ];
        let mut quotas = quotas(&objects);
        assert_eq!(quotas.take(&pod("b", "1")), Ok(()));
        let refused = "exceeded quota: team, requested: pods=1, used: pods=2, limited: pods=2";
        assert_eq!(taken(&mut quotas, &pod("c", "1")), Err(refused.to_owned()));
    }

    #[test]
    fn a_pod_that_leaves_out_what_is_limited_is_refused() {
        let mut quotas = quotas(&[quota(json!({"limits.cpu": "2"}), json!(null))]);
        let refused = "failed quota: team: must specify limits.cpu for: c";
        assert_eq!(taken(&mut quotas, &pod("a", "1")), Err(refused.to_owned()));
    }
}
