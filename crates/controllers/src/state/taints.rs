//! Taints and tolerations on the API's own types.
//!
//! The engine decides placements; this module serves controllers that act on placed pods (taint eviction, the
//! kubelet's admission).

use k8s_openapi::api::core::v1::{Taint, Toleration};

/// Returns whether `toleration` tolerates `taint` (Kubernetes: `Toleration.ToleratesTaint` without the comparison
/// operators).
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let effect_fits = given(&toleration.effect).is_none_or(|effect| effect == taint.effect);
    let key_fits = given(&toleration.key).is_none_or(|key| key == taint.key);
    let value_fits = match toleration.operator.as_deref() {
        None | Some("" | "Equal") => {
            toleration.value.as_deref().unwrap_or_default()
                == taint.value.as_deref().unwrap_or_default()
        }
        Some("Exists") => true,
        Some(_) => false,
    };
    effect_fits && key_fits && value_fits
}

/// Returns the first of `taints` that has one of `effects` and that no toleration tolerates.
pub fn untolerated<'t>(
    taints: &'t [Taint],
    tolerations: &[Toleration],
    effects: &[&str],
) -> Option<&'t Taint> {
    let mut relevant = taints
        .iter()
        .filter(|taint| effects.contains(&taint.effect.as_str()));
    relevant.find(|taint| {
        !tolerations
            .iter()
            .any(|toleration| tolerates(toleration, taint))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taint(text: &str) -> Taint {
        let (key, rest) = text.split_once('=').expect("key=value:Effect");
        let (value, effect) = rest.split_once(':').expect("key=value:Effect");
        Taint {
            key: key.into(),
            value: Some(value.into()),
            effect: effect.into(),
            time_added: None,
        }
    }

    fn toleration(key: &str, operator: &str, value: &str, effect: &str) -> Toleration {
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Toleration {
            key: text(key),
            operator: text(operator),
            value: text(value),
            effect: text(effect),
            toleration_seconds: None,
        }
    }

    #[test]
    fn key_operator_value_and_effect_all_have_to_fit() {
        let cases = [
            (toleration("os", "Equal", "windows", "NoSchedule"), true),
            (toleration("os", "", "windows", ""), true),
            (toleration("os", "Equal", "linux", "NoSchedule"), false),
            (toleration("os", "Exists", "", "NoSchedule"), true),
            (toleration("os", "Exists", "", "NoExecute"), false),
            (toleration("", "Exists", "", ""), true),
            (toleration("gpu", "Exists", "", ""), false),
            (toleration("os", "Gt", "1", ""), false),
        ];
        for (toleration, expected) in cases {
            assert_eq!(
                tolerates(&toleration, &taint("os=windows:NoSchedule")),
                expected,
                "{toleration:?}"
            );
        }
    }

    #[test]
    fn only_taints_of_the_effects_asked_for_count() {
        let taints = [taint("a=1:PreferNoSchedule"), taint("b=1:NoSchedule")];
        assert_eq!(untolerated(&taints, &[], &["NoExecute"]), None);
        assert_eq!(
            untolerated(&taints, &[], &["NoSchedule", "NoExecute"]).map(|taint| taint.key.as_str()),
            Some("b")
        );
    }
}
