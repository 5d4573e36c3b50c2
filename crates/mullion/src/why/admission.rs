//! Has an API server admit the pods of a manifest, and adds what their workloads and the cluster create for them.
//!
//! The server is the cluster's own, or one in this process. A pod that a quota of the cluster refuses is admitted by the latter: how many pods
//! the quotas have room for depends on those that the manifest replaces, and [`crate::plan::quotas`] counts them.

use kube::core::Status;
use mullion_engine::model::PodSpec;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    addresses,
    kinds::QUOTA,
    placement::Placement,
    source::{self, Source},
    template::{self, Prospect, put},
    world::{self, PlannedPod},
    writes::{self, Answered},
};
use crate::{failure::Failure, out, plan::refusals::some_of};

/// What admission warns of.
#[derive(Default)]
pub(super) struct Warnings {
    /// Each warning once, with the names of the objects that it is about, as in `a pod of Deployment shop/web`.
    found: Vec<(String, Vec<String>)>,
}

impl Warnings {
    pub(super) fn add(&mut self, named: &str, texts: Vec<String>) {
        for text in texts {
            match self.found.iter_mut().find(|(own, _)| *own == text) {
                Some((_, names)) if names.iter().any(|name| name == named) => {}
                Some((_, names)) => names.push(named.to_owned()),
                None => self.found.push((text, vec![named.to_owned()])),
            }
        }
    }

    /// Prints the warnings as notes.
    pub(super) fn print(&self) {
        for (text, names) in &self.found {
            out::note(&format!("{}: {text}", some_of(names)));
        }
    }
}

/// Has an API server admit a pod, and adds what its workload and the cluster create for it.
///
/// # Errors
/// The API server refuses the pod; the error repeats its message.
pub(super) async fn admit(
    source: &mut Source,
    prospect: Prospect,
    placement: &Placement,
    warnings: &mut Warnings,
) -> Result<PlannedPod, Failure> {
    let Prospect {
        named,
        pod_owner,
        replicas,
        none_by,
        pod,
        owner,
        claims,
        daemon,
    } = prospect;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (home, name) = (
        text(&pod["metadata"]["namespace"]),
        text(&pod["metadata"]["name"]),
    );
    if let Some(owner) = owner {
        world::take(&mut source.state, &owner)?;
    }
    // A server refuses a pod whose name is taken, even in a dry run, so it is asked for another pod like this one.
    let is_taken = source.state.pod(&home, &name).is_some();
    let mut asked = pod;
    if is_taken && let Some(metadata) = asked["metadata"].as_object_mut() {
        metadata.remove("name");
        metadata.insert("generateName".to_owned(), json!(format!("{name}-")));
    }
    let mut verdict = judge(source, &asked, &home, &named).await?;
    if is_taken {
        put(&mut verdict.pod["metadata"], "name", json!(name));
    }
    if verdict.is_local {
        let placed = placement.place(&source.state, &mut verdict.pod)?;
        verdict.warnings.extend(placed);
        addresses::request(&mut verdict.pod, &source.state);
    }
    warnings.add(&named, verdict.warnings);
    let mut admitted = verdict.pod;
    let templates = source.state.kept("ResourceClaimTemplate");
    let templates: Vec<Value> = templates.map_err(Failure::input)?;
    for claim in template::device_claims(&mut admitted, &templates) {
        world::take(&mut source.state, &claim)?;
    }
    let claims = claims.into_iter();
    let mut own_claims = Vec::new();
    for claim in claims.chain(template::ephemeral_claims(&admitted)) {
        let made = world::add(source, &claim, None).await?;
        own_claims.push(made.unwrap_or(claim));
    }
    source.state.pod_facts.note_images(&admitted);
    let spec = PodSpec::deserialize(&admitted)
        .map_err(|error| Failure::run(format!("pod {home}/{name} cannot be read: {error}")))?;
    Ok(PlannedPod {
        named,
        // Without a uid the pod's key is its name, so it cannot equal the key of an existing pod.
        pod: PodSpec {
            uid: String::new(),
            ..spec
        },
        daemon,
        owner: pod_owner,
        replicas,
        none_by,
        admitted,
        claims: own_claims,
        is_taken,
    })
}

/// A pod as an API server would store it.
struct Verdict {
    pod: Value,
    warnings: Vec<String>,
    /// Whether the API server in this process has admitted the pod, which knows no rule of the cluster's own.
    is_local: bool,
}

/// Asks the cluster's API server what becomes of a new pod, or the one in this process where there is no cluster or a quota refuses the pod.
async fn judge(
    source: &mut Source,
    pod: &Value,
    home: &str,
    named: &str,
) -> Result<Verdict, Failure> {
    // The validation is strict, because a misspelt field would change the answer.
    let path = format!("/api/v1/namespaces/{home}/pods?dryRun=All&fieldValidation=Strict");
    if !source.offline {
        let refused = match writes::try_create(&source.client, &path, pod).await? {
            Ok(Answered { object, warnings }) => {
                return Ok(Verdict {
                    pod: object,
                    warnings,
                    is_local: false,
                });
            }
            Err(status) => status,
        };
        let mut quotas = source.state.objects(QUOTA);
        let is_known = quotas.any(|quota| quota["metadata"]["namespace"] == home);
        if !is_known || !is_of_a_quota(&refused) {
            return Err(Failure::input(refused.message));
        }
        out::note(&format!(
            "{named}: the cluster's own webhooks and policies are not asked, because a quota refuses the pod at present"
        ));
    }
    let client = if source.offline {
        source.client.clone()
    } else {
        source.beside().await?
    };
    let account = pod["spec"]["serviceAccountName"].as_str();
    source::make_home(&client, home, account.unwrap_or("default")).await?;
    let answered = writes::try_create(&client, &path, pod).await?;
    let Answered { object, warnings } =
        answered.map_err(|status| Failure::input(status.message))?;
    Ok(Verdict {
        pod: object,
        warnings,
        is_local: true,
    })
}

/// Returns whether a quota refuses a pod, as kube-apiserver words it.
fn is_of_a_quota(status: &Status) -> bool {
    let causes = [
        "exceeded quota: ",
        "failed quota: ",
        "status unknown for quota: ",
    ];
    status.code == 403 && causes.iter().any(|cause| status.message.contains(cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_kept_once_with_all_that_it_is_about() {
        let mut warnings = Warnings::default();
        let texts = || vec!["one".to_owned(), "two".to_owned()];
        warnings.add("pod a/b", texts());
        warnings.add("pod a/b", texts());
        warnings.add("pod a/c", vec!["two".to_owned()]);
        let both = vec!["pod a/b".to_owned(), "pod a/c".to_owned()];
        let expected = [
            ("one".to_owned(), vec!["pod a/b".to_owned()]),
            ("two".to_owned(), both),
        ];
        assert_eq!(warnings.found, expected);
    }
}
