//! Looks up objects and permissions for admission rules, from an API server whose objects this process does not cache.
//!
//! Rules are synchronous functions, and what one looks up can depend on an earlier lookup: a pod's service account names its
//! pull secrets. So [`Lookups::ask`] calls the rule, records the lookups that had no answer yet, reads those, and calls the
//! rule again until nothing is missing. Objects that change seldom and are the same for all pods are cached for a second.

use std::{
    cell::RefCell,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::future::try_join_all;
use k8s_openapi::{
    api::authorization::v1::{
        LocalSubjectAccessReview, ResourceAttributes, SubjectAccessReviewSpec,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api,
    api::{DynamicObject, ListParams, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use rustc_hash::FxHashMap;
use serde_json::Value;
use tokio::time::{Instant, timeout};

use super::{Access, ClusterReader, Permission, ServiceAccount};
use crate::{Context, api_error};

/// The maximum number of times a rule is called. GMSA looks up two things about each spec that a pod names, one after the
/// other.
const ROUNDS: usize = 64;
/// How long answers that are the same for all pods are cached.
const HOLD: Duration = Duration::from_secs(1);
/// The timeout of one request.
const PATIENCE: Duration = Duration::from_secs(5);

/// A kind that rules look up.
struct Kind {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    /// Whether an object is cached for [`HOLD`]. Objects that belong to one pod, or are secret, are not.
    is_kept: bool,
}

const KINDS: [Kind; 10] = [
    kind("", "v1", "Namespace", "namespaces", true),
    kind("", "v1", "Node", "nodes", true),
    kind("", "v1", "ServiceAccount", "serviceaccounts", false),
    kind("", "v1", "Secret", "secrets", false),
    kind("", "v1", "ConfigMap", "configmaps", true),
    kind("apps", "v1", "Deployment", "deployments", true),
    kind("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", true),
    kind("karpenter.sh", "v1", "NodePool", "nodepools", true),
    kind(
        "karpenter.k8s.aws",
        "v1",
        "EC2NodeClass",
        "ec2nodeclasses",
        true,
    ),
    kind(
        "windows.k8s.io",
        "v1",
        "GMSACredentialSpec",
        "gmsacredentialspecs",
        false,
    ),
];

const fn kind(
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    is_kept: bool,
) -> Kind {
    Kind {
        group,
        version,
        kind,
        plural,
        is_kept,
    }
}

/// One lookup of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Lookup {
    Find {
        kind: usize,
        namespace: String,
        name: String,
    },
    List {
        kind: usize,
        namespace: String,
    },
    May {
        namespace: String,
        account: String,
        verb: String,
        group: String,
        plural: String,
        name: String,
    },
}

#[derive(Clone, Debug)]
enum LookupResult {
    Found(Option<Arc<Value>>),
    Listed(Vec<Arc<Value>>),
    Permitted(Permission),
}

/// Answers the lookups of rules. Cheap to clone.
#[derive(Clone)]
pub struct Lookups {
    context: Context,
    kept: Arc<Mutex<FxHashMap<Lookup, (Instant, LookupResult)>>>,
}

impl Lookups {
    /// Creates lookups that use the context's client; nodes come from its informer.
    pub fn new(context: &Context) -> Self {
        Lookups {
            context: context.clone(),
            kept: Arc::default(),
        }
    }

    /// Calls `decide` again and again until all of its lookups are answered, and returns its last result.
    ///
    /// # Errors
    /// Returns an error if the API server cannot be reached, times out, or refuses a lookup.
    pub async fn ask<T>(&self, mut decide: impl FnMut(&dyn ClusterReader) -> T) -> kube::Result<T> {
        let mut answers = FxHashMap::default();
        for _ in 0..ROUNDS {
            let round = Round {
                lookups: self,
                answers: &answers,
                missing: RefCell::default(),
            };
            // The rule runs again from its beginning, because an answer can change what it looks up next.
            let decision = decide(&round);
            let missing = round.missing.into_inner();
            if missing.is_empty() {
                return Ok(decision);
            }
            let read = missing.into_iter().map(|question| async {
                let answer = match timeout(PATIENCE, self.read(&question)).await {
                    Ok(answer) => answer?,
                    Err(_) => {
                        let why = format!(
                            "{question:?} was not answered within {} s",
                            PATIENCE.as_secs()
                        );
                        return Err(kube::Error::Service(why.into()));
                    }
                };
                kube::Result::Ok((question, answer))
            });
            // All at once: a rule often looks up several independent things in one round.
            answers.extend(try_join_all(read).await?);
        }
        let why = format!("a rule asked for something new in each of {ROUNDS} rounds");
        Err(kube::Error::Service(why.into()))
    }

    async fn read(&self, question: &Lookup) -> kube::Result<LookupResult> {
        let answer = match question {
            Lookup::Find {
                kind,
                namespace,
                name,
            } => {
                // A kind that is not served also gives 404, but without a Status.
                let found = self.api(&KINDS[*kind], namespace).get(name).await;
                let found = api_error::ignore_not_found(found)?;
                LookupResult::Found(found.map(as_value).transpose()?)
            }
            Lookup::List { kind, namespace } => {
                let api = self.api(&KINDS[*kind], namespace);
                // A cluster without Karpenter does not serve its kinds.
                let all = api_error::ignore_not_found(api.list(&ListParams::default()).await)?;
                let all = all.into_iter().flat_map(|list| list.items).map(as_value);
                LookupResult::Listed(all.collect::<kube::Result<_>>()?)
            }
            Lookup::May {
                namespace,
                account,
                verb,
                group,
                plural,
                name,
            } => {
                let review = LocalSubjectAccessReview {
                    metadata: ObjectMeta {
                        namespace: Some(namespace.clone()),
                        ..ObjectMeta::default()
                    },
                    spec: SubjectAccessReviewSpec {
                        user: Some(format!("system:serviceaccount:{namespace}:{account}")),
                        groups: Some(vec![
                            "system:serviceaccounts".to_owned(),
                            format!("system:serviceaccounts:{namespace}"),
                        ]),
                        resource_attributes: Some(ResourceAttributes {
                            namespace: Some(namespace.clone()),
                            verb: Some(verb.clone()),
                            group: Some(group.clone()),
                            resource: Some(plural.clone()),
                            name: Some(name.clone()),
                            ..ResourceAttributes::default()
                        }),
                        ..SubjectAccessReviewSpec::default()
                    },
                    status: None,
                };
                let api: Api<LocalSubjectAccessReview> =
                    Api::namespaced(self.context.client.clone(), namespace);
                let answer = api.create(&PostParams::default(), &review).await?;
                let status = answer.status.unwrap_or_default();
                LookupResult::Permitted(Permission {
                    allowed: status.allowed,
                    reason: status.reason.unwrap_or_default(),
                })
            }
        };
        if question.is_kept() {
            let until = Instant::now() + HOLD;
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            // Entries live for a second, so this keeps the map small without a task that cleans it.
            kept.retain(|_, (until, _)| *until > Instant::now());
            kept.insert(question.clone(), (until, answer.clone()));
        }
        Ok(answer)
    }

    fn api(&self, kind: &Kind, namespace: &str) -> Api<DynamicObject> {
        let gvk = GroupVersionKind::gvk(kind.group, kind.version, kind.kind);
        let resource = ApiResource::from_gvk_with_plural(&gvk, kind.plural);
        let client = self.context.client.clone();
        match namespace {
            "" => Api::all_with(client, &resource),
            namespace => Api::namespaced_with(client, namespace, &resource),
        }
    }

    fn kept(&self, question: &Lookup) -> Option<LookupResult> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let (until, answer) = kept.get(question)?;
        (*until > Instant::now()).then(|| answer.clone())
    }
}

impl Lookup {
    fn is_kept(&self) -> bool {
        match self {
            Lookup::Find { kind, .. } | Lookup::List { kind, .. } => KINDS[*kind].is_kept,
            Lookup::May { .. } => false,
        }
    }
}

fn as_value(object: impl serde::Serialize) -> kube::Result<Arc<Value>> {
    let value = serde_json::to_value(object).map_err(kube::Error::SerdeError)?;
    Ok(Arc::new(value))
}

/// One call of a rule: answers lookups from what was read so far, and records those that are missing.
struct Round<'a> {
    lookups: &'a Lookups,
    answers: &'a FxHashMap<Lookup, LookupResult>,
    missing: RefCell<Vec<Lookup>>,
}

impl Round<'_> {
    fn answer(&self, question: Lookup) -> Option<LookupResult> {
        let answer = self.answers.get(&question).cloned();
        let answer = answer.or_else(|| self.lookups.kept(&question));
        if answer.is_none() {
            let mut missing = self.missing.borrow_mut();
            if !missing.contains(&question) {
                missing.push(question);
            }
        }
        answer
    }
}

/// Returns the index of a kind in [`KINDS`].
fn place(group: &str, plural: &str) -> usize {
    let place = KINDS
        .iter()
        .position(|kind| kind.group == group && kind.plural == plural);
    place.expect("rules look up the kinds of the table above only")
}

impl ClusterReader for Round<'_> {
    fn is_complete(&self) -> bool {
        self.missing.borrow().is_empty()
    }

    fn find(
        &self,
        group: &str,
        plural: &str,
        namespace: Option<&str>,
        name: &str,
    ) -> Option<Arc<Value>> {
        let nodes = &self.lookups.context.informers.nodes;
        if (group, plural) == ("", "nodes")
            && let Some(node) = nodes.get("", name)
        {
            return as_value(&*node).ok();
        }
        // A node that the informer does not show yet is read, because a new pod may already name it.
        let question = Lookup::Find {
            kind: place(group, plural),
            namespace: namespace.unwrap_or_default().to_owned(),
            name: name.to_owned(),
        };
        match self.answer(question) {
            Some(LookupResult::Found(found)) => found,
            _ => None,
        }
    }

    fn list(&self, group: &str, plural: &str, namespace: Option<&str>) -> Vec<Arc<Value>> {
        if (group, plural) == ("", "nodes") {
            let nodes = self.lookups.context.informers.nodes.list();
            return nodes
                .iter()
                .filter_map(|node| as_value(&**node).ok())
                .collect();
        }
        let question = Lookup::List {
            kind: place(group, plural),
            namespace: namespace.unwrap_or_default().to_owned(),
        };
        match self.answer(question) {
            Some(LookupResult::Listed(all)) => all,
            _ => Vec::new(),
        }
    }

    fn may(&self, account: &ServiceAccount<'_>, access: &Access<'_>) -> Permission {
        let question = Lookup::May {
            namespace: account.namespace.to_owned(),
            account: account.name.to_owned(),
            verb: access.verb.to_owned(),
            group: access.group.to_owned(),
            plural: access.plural.to_owned(),
            name: access.name.to_owned(),
        };
        match self.answer(question) {
            Some(LookupResult::Permitted(permission)) => permission,
            _ => Permission::default(),
        }
    }
}
