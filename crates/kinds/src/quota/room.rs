//! Whether a quota has room for what an object uses (`apiserver/pkg/admission/plugin/resourcequota`).
//!
//! What a quota allows and what is used of it is in its status.

use std::fmt;

use mullion_kube_text::quantity::Quantity;
use mullion_schema::tree::{Tree, object_at};
use serde_json::Value;

use super::{Amounts, CountedKind, scopes};
use crate::{
    podspec::totals::{self, Totals},
    request::Lookup,
};

/// The reason why a quota refuses an object, with the text that kube-apiserver puts behind `pods "web" is forbidden: `.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuotaError {
    /// The object leaves out a limited resource.
    Missing {
        /// The quota's name.
        quota: String,
        /// What is missing and where, as in `must specify limits.cpu for: web`.
        missing: String,
    },
    /// Nobody has computed yet what is used of limited resources.
    Unknown {
        /// The quota's name.
        quota: String,
        /// The names of the limited resources, with commas between.
        resources: String,
    },
    /// The quota has less left than the object uses. The texts have all resources of which it has too little, as in `pods=1,requests.cpu=2`.
    Exceeded {
        /// The quota's name.
        quota: String,
        /// What the object uses.
        requested: String,
        /// What is used.
        used: String,
        /// What may be used.
        limited: String,
    },
}

impl fmt::Display for QuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QuotaError::Missing { quota, missing } => write!(f, "failed quota: {quota}: {missing}"),
            QuotaError::Unknown { quota, resources } => write!(
                f,
                "status unknown for quota: {quota}, resources: {resources}"
            ),
            QuotaError::Exceeded {
                quota,
                requested,
                used,
                limited,
            } => write!(
                f,
                "exceeded quota: {quota}, requested: {requested}, used: {used}, limited: {limited}"
            ),
        }
    }
}

impl std::error::Error for QuotaError {}

/// Returns whether a quota counts the object.
///
/// # Errors
/// The object leaves out a limited resource, or nobody has computed yet what is used of one.
pub fn counts(
    lookup: &dyn Lookup,
    quota: &Value,
    counted: &CountedKind<'_>,
    object: &Value,
) -> Result<bool, QuotaError> {
    let status = &quota["status"];
    let limits = status.entries("hard").map(|(name, _)| name);
    let mut limited = counted.limits(lookup, limits);
    if limited.is_empty() || !scopes::contain(quota, counted, object) {
        return Ok(false);
    }
    let name = || quota["metadata"].text("name").to_owned();
    // A pod that names no amount could use any, so a quota on that amount cannot count it (kube-apiserver: podEvaluator.Constraints).
    if let Some(missing) = counted.missing(&limited, object) {
        return Err(QuotaError::Missing {
            quota: name(),
            missing,
        });
    }
    let unknown = limited.iter().any(|resource| !status["used"].has(resource));
    if unknown {
        limited.sort_unstable();
        return Err(QuotaError::Unknown {
            quota: name(),
            resources: limited.join(","),
        });
    }
    Ok(true)
}

/// Returns those of the amounts that a quota limits.
///
/// # Errors
/// The quota has less left than one of them.
pub fn limited(quota: &Value, amounts: &Amounts) -> Result<Amounts, QuotaError> {
    let status = &quota["status"];
    let (hard, used) = (totals::list(&status["hard"]), totals::list(&status["used"]));
    let zero = Quantity::from_integer(0);
    let wanted: Amounts = amounts
        .iter()
        .filter(|(name, _)| hard.contains_key(name.as_str()))
        .map(|(name, amount)| (name.clone(), amount.clone()))
        .collect();
    let exceeded: Vec<&String> = wanted
        .iter()
        .filter(|(name, amount)| {
            let used = used.get(name.as_str()).unwrap_or(&zero);
            // Only resources whose usage rises are looked at, so a quota that was lowered below its usage does not block other writes.
            used.plus(amount) > hard[name.as_str()]
        })
        .map(|(name, _)| name)
        .collect();
    if exceeded.is_empty() {
        return Ok(wanted);
    }
    let shown = |of: &dyn Fn(&str) -> Option<String>| -> String {
        let parts = exceeded
            .iter()
            .filter_map(|name| Some(format!("{name}={}", of(name)?)));
        parts.collect::<Vec<_>>().join(",")
    };
    let amount = |list: &Totals<'_>, name: &str| list.get(name).map(Quantity::to_string);
    Err(QuotaError::Exceeded {
        quota: quota["metadata"].text("name").to_owned(),
        requested: shown(&|name| wanted.get(name).map(Quantity::to_string)),
        used: shown(&|name| amount(&used, name)),
        limited: shown(&|name| amount(&hard, name)),
    })
}

/// Adds amounts to what is used of a quota.
pub fn take(quota: &mut Value, amounts: &Amounts) {
    book(quota, amounts, Quantity::plus);
}

/// Subtracts amounts from what is used of a quota.
pub fn give_back(quota: &mut Value, amounts: &Amounts) {
    book(quota, amounts, Quantity::minus);
}

fn book(quota: &mut Value, amounts: &Amounts, change: impl Fn(&Quantity, &Quantity) -> Quantity) {
    let Some(status) = quota.get_mut("status").and_then(Value::as_object_mut) else {
        return;
    };
    let used = object_at(status, "used");
    for (name, amount) in amounts {
        let before = used
            .get(name)
            .map_or_else(|| Quantity::from_integer(0), totals::quantity);
        used.insert(name.clone(), change(&before, amount).to_string().into());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn amounts(of: &[(&str, &str)]) -> Amounts {
        of.iter()
            .map(|(name, text)| ((*name).to_owned(), Quantity::parse(text).unwrap()))
            .collect()
    }

    #[test]
    fn what_is_taken_can_be_given_back() {
        let mut quota = json!({"status": {"used": {"pods": "1", "requests.cpu": "500m"}}});
        let before = quota.clone();
        let amounts = amounts(&[("pods", "1"), ("requests.cpu", "600m")]);
        take(&mut quota, &amounts);
        assert_eq!(
            quota["status"]["used"],
            json!({"pods": "2", "requests.cpu": "1100m"})
        );
        give_back(&mut quota, &amounts);
        assert_eq!(quota, before);
    }

    #[test]
    fn only_what_a_quota_has_too_little_of_is_named() {
        let quota = json!({
            "metadata": {"name": "team"},
            "status": {
                "hard": {"pods": "2", "requests.cpu": "1"},
                "used": {"pods": "1", "requests.cpu": "500m"},
            },
        });
        let one = ("pods", "1");
        let fits = limited(&quota, &amounts(&[one, ("memory", "1Gi")]));
        assert_eq!(fits, Ok(amounts(&[one])));
        let refused = limited(&quota, &amounts(&[one, ("requests.cpu", "600m")]));
        assert_eq!(
            refused.map_err(|why| why.to_string()),
            Err("exceeded quota: team, requested: requests.cpu=600m, used: requests.cpu=500m, limited: requests.cpu=1".to_owned())
        );
    }
}
