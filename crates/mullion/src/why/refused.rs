//! The objects of manifests that are refused, which are reported together in the order of the files.
//!
//! An object may be refused only because another one of the manifests is: it is said to be a consequence, so that the user knows what to mend.

use super::manifest::Place;
use crate::failure::Failure;

/// Refusals of several objects, which are reported together.
#[derive(Default)]
pub(crate) struct Refusals(Vec<(Place, Failure)>);

impl Refusals {
    /// Notes the failure of the object at a place; returns the result of the others.
    ///
    /// # Errors
    /// The failure is no refusal: the work failed, and so it would for other objects.
    pub(crate) fn note<T>(
        &mut self,
        place: &Place,
        result: Result<T, Failure>,
    ) -> Result<Option<T>, Failure> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(failure) if failure.is_of_input() => {
                self.refuse(place, failure);
                Ok(None)
            }
            Err(failure) => Err(failure.about(place)),
        }
    }

    /// Notes that the object at a place is refused.
    pub(crate) fn refuse(&mut self, place: &Place, failure: Failure) {
        self.0.push((place.clone(), failure));
    }

    /// Returns the failure of all objects.
    ///
    /// # Errors
    /// An object was refused.
    pub(crate) fn result(mut self) -> Result<(), Failure> {
        self.0.sort_by_key(|(place, _)| place.order);
        let all = &self.0;
        let lines: Vec<String> = all
            .iter()
            .map(|(place, failure)| match self.cause_of(place, failure) {
                Some(cause) => {
                    let side = if cause.order < place.order {
                        "above"
                    } else {
                        "below"
                    };
                    format!(
                        "{place}: refused because {} {} {side} is refused",
                        cause.kind, cause.name
                    )
                }
                None => format!("{place}: {}", failure.message()),
            })
            .collect();
        let message = match lines.as_slice() {
            [] => return Ok(()),
            [only] => only.clone(),
            several => format!(
                "{} objects are refused\n  {}",
                several.len(),
                several.join("\n  ")
            ),
        };
        let failure = Failure::input(message);
        Err(match all.iter().find_map(|(_, failure)| failure.hinted()) {
            Some(hint) => failure.hint(hint),
            None => failure,
        })
    }

    /// Returns the place of the refused object that another one lacks; `None` if the other one is refused for a reason of its own.
    fn cause_of(&self, place: &Place, failure: &Failure) -> Option<&Place> {
        let mut all = self.0.iter().map(|(cause, _)| cause);
        all.find(|cause| cause.order != place.order && lacks(failure.message(), place, cause))
    }
}

/// Returns whether the message of kube-apiserver about the object at `place` says that the object at `cause` is not there, or cannot be. Its
/// admission plugins Priority, RuntimeClass, ServiceAccount and NamespaceLifecycle word the former each in its own way.
fn lacks(message: &str, place: &Place, cause: &Place) -> bool {
    let Place {
        kind,
        namespace,
        name,
        ..
    } = cause;
    let absent = match kind.as_str() {
        "PriorityClass" => format!("no PriorityClass with name {name} was found"),
        "RuntimeClass" => format!("RuntimeClass \"{name}\" not found"),
        // A pod lacks the account of its own namespace only.
        "ServiceAccount" if *namespace != place.namespace => return false,
        "ServiceAccount" => format!("serviceaccount \"{name}\" not found"),
        "Namespace" => format!("namespaces \"{name}\" not found"),
        _ => return false,
    };
    message.contains(&absent) || message.contains(&format!("{kind} \"{name}\" is invalid"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(all: &[(usize, &str, &str, &str)]) -> String {
        let mut refusals = Refusals::default();
        for (order, kind, name, message) in all {
            let mut place = Place::of(&format!("f.yaml ({kind} {name})"), kind, name);
            place.order = *order;
            let noted = refusals.note::<()>(&place, Err(Failure::input(message)));
            assert_eq!(noted.expect("a refusal"), None);
        }
        refusals.result().expect_err("refused").to_string()
    }

    #[test]
    fn refusals_come_in_the_order_of_the_files_and_name_what_they_follow_from() {
        let missing = "pods \"web\" is forbidden: no PriorityClass with name gold was found";
        assert_eq!(
            refused(&[
                (1, "PriorityClass", "gold", "value: Required value"),
                (3, "Pod", "web", missing),
                (2, "Pod", "own", "spec.containers: Required value"),
                (0, "Pod", "first", missing),
            ]),
            "error: 4 objects are refused\n  \
             f.yaml (Pod first): refused because PriorityClass gold below is refused\n  \
             f.yaml (PriorityClass gold): value: Required value\n  \
             f.yaml (Pod own): spec.containers: Required value\n  \
             f.yaml (Pod web): refused because PriorityClass gold above is refused"
        );
    }

    #[test]
    fn what_a_cluster_lacks_is_no_consequence() {
        let missing = "pods \"web\" is forbidden: no PriorityClass with name gold was found";
        assert_eq!(
            refused(&[(0, "Pod", "web", missing)]),
            format!("error: f.yaml (Pod web): {missing}")
        );
    }

    #[test]
    fn a_service_account_of_another_namespace_is_no_cause() {
        let said = |home: &str| {
            let mut refusals = Refusals::default();
            let why = "pods \"web\" is forbidden: error looking up service account shop/bot: serviceaccount \"bot\" not found";
            for (order, kind, namespace, name, message) in [
                (0, "ServiceAccount", home, "bot", "unknown field \"sceret\""),
                (1, "Pod", "shop", "web", why),
            ] {
                let title = format!("f.yaml ({kind} {namespace}/{name})");
                let mut place = Place::of(&title, kind, name);
                (place.order, place.namespace) = (order, namespace.to_owned());
                refusals.refuse(&place, Failure::input(message));
            }
            let refused = refusals.result().expect_err("refused").to_string();
            refused.lines().last().map(str::to_owned)
        };
        let follows =
            "  f.yaml (Pod shop/web): refused because ServiceAccount bot above is refused";
        assert_eq!(said("shop").as_deref(), Some(follows));
        let own = said("bank").expect("a line");
        assert!(own.ends_with("serviceaccount \"bot\" not found"), "{own}");
    }
}
