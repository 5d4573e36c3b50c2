//! The condition `ValidationSucceeded` of EC2NodeClasses (AWS provider: `nodeclass/validation.go`).
//!
//! What the class says is judged first. A class without objection is then tried: dry runs find out whether IAM allows the calls
//! of its launches. Invariant: a class that does not change is tried once in [`KEPT_FOR`]; a failure that may pass is not kept.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use kube::ResourceExt;
use mullion_api::{
    ami::AmiFamily,
    eksctl::KubernetesVersion,
    karpenter::{EC2NodeClass, EC2NodeClassSpec, NodePool, Requirement},
    labels,
};
use mullion_cloud::{
    CloudError, DeniedCall, LaunchCall, LaunchRequest, NodeTemplate, Tenancy, family_of,
};
use serde_json::json;

use super::{AMIS, INSTANCE_PROFILE, SECURITY_GROUPS, SUBNETS};
use crate::{
    nodeclaim::{launch::class_request, launch_failure::reason_and_message},
    provisioner::{
        BY_CLASS, KarpenterContext,
        market::{MarketError, tenancies},
    },
};

/// The time for which the result of a trial is kept.
const KEPT_FOR: Duration = Duration::from_secs(30 * 60);
/// The conditions without which no launch can be tried.
const REQUIRED: [&str; 4] = [AMIS, INSTANCE_PROFILE, SECURITY_GROUPS, SUBNETS];
/// Tags that launches set. Also restricted: `kubernetes.io/cluster/` with the name of a cluster.
const RESTRICTED_TAGS: [&str; 4] = [
    labels::NODEPOOL,
    labels::CLUSTER_TAG,
    labels::EC2NODECLASS,
    "karpenter.sh/nodeclaim",
];

/// What the condition says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is True.
    Valid,
    /// It is False.
    Invalid {
        reason: &'static str,
        message: String,
    },
    /// It stays as it is, because the cloud has not answered.
    Open,
}

impl Verdict {
    fn invalid(reason: &'static str, message: impl Into<String>) -> Self {
        Self::Invalid {
            reason,
            message: message.into(),
        }
    }
}

/// A verdict, and the error for which the class has to be tried again soon.
#[derive(Debug)]
pub(super) struct Judgement {
    pub(super) verdict: Verdict,
    pub(super) retry: Option<MarketError>,
}

impl From<Verdict> for Judgement {
    fn from(verdict: Verdict) -> Self {
        let retry = None;
        Self { verdict, retry }
    }
}

/// The results of trials that are kept, by class and by what was tried.
#[derive(Debug, Default)]
pub(super) struct DryRunCache {
    kept: Mutex<BTreeMap<(String, String), (Timestamp, Verdict)>>,
}

impl DryRunCache {
    /// Judges a class whose status shows what its selectors have found.
    pub(super) async fn judge(
        &self,
        karpenter: &KarpenterContext,
        class: &EC2NodeClass,
    ) -> Judgement {
        let options = &karpenter.options;
        if let Some(objection) = static_error(class, options.version) {
            return objection.into();
        }
        let key = (class.name_any(), fingerprint(class, &options.cluster));
        let now = karpenter.base.clock.now();
        if let Some(verdict) = self.recent(&key, now) {
            return verdict.into();
        }
        let judgement = if options.settings.disable_dry_run {
            Verdict::Valid.into()
        } else {
            judged(karpenter, class, trial(karpenter, class).await)
        };
        if judgement.retry.is_none() {
            self.kept().insert(key, (now, judgement.verdict.clone()));
        }
        judgement
    }

    /// Drops the results of a class that is gone.
    pub(super) fn forget(&self, class: &str) {
        self.kept().retain(|(name, _), _| name != class);
    }

    /// Returns a result that is still kept, and drops those that are not.
    fn recent(&self, key: &(String, String), now: Timestamp) -> Option<Verdict> {
        let mut kept = self.kept();
        kept.retain(|_, (at, _)| {
            let age = Duration::try_from(now.duration_since(*at)).unwrap_or_default();
            age < KEPT_FOR
        });
        kept.get(key).map(|(_, verdict)| verdict.clone())
    }

    fn kept(&self) -> MutexGuard<'_, BTreeMap<(String, String), (Timestamp, Verdict)>> {
        // After a panic while the lock was held, at worst a class is tried once more.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns what makes a class invalid before anything is tried.
pub(super) fn static_error(class: &EC2NodeClass, version: KubernetesVersion) -> Option<Verdict> {
    let spec = &class.spec;
    if let Err(error) = NodeTemplate::from_class(spec, version) {
        return Some(Verdict::invalid("InvalidNodeClass", error.to_string()));
    }
    unsupported_kubelet(spec)
        .or_else(|| missing_dependency(class))
        .or_else(|| restricted_tags(spec))
}

/// Returns an error about kubelet settings that the class's image family does not apply. Only AL2023 applies all.
fn unsupported_kubelet(spec: &EC2NodeClassSpec) -> Option<Verdict> {
    let kubelet = spec.kubelet.as_ref()?;
    let family = family_of(spec)?;
    let mut dropped: Vec<_> = match family {
        AmiFamily::AmazonLinux2023 => Vec::new(),
        _ => kubelet.other.keys().map(String::as_str).collect(),
    };
    if family.is_bottlerocket() && kubelet.pods_per_core.is_some() {
        dropped.push("podsPerCore");
    }
    dropped.sort_unstable();
    (!dropped.is_empty()).then(|| {
        let message = format!(
            "spec.kubelet has fields that the image family does not apply: {}",
            dropped.join(", ")
        );
        Verdict::invalid("UnsupportedKubeletConfiguration", message)
    })
}

fn missing_dependency(class: &EC2NodeClass) -> Option<Verdict> {
    let mut conditions = class.status.iter().flat_map(|status| &status.conditions);
    let is_missing =
        conditions.any(|own| own.status == "False" && REQUIRED.contains(&own.type_.as_str()));
    let message = "Awaiting AMI, Instance Profile, Security Group, and Subnet resolution";
    is_missing.then(|| Verdict::invalid("DependenciesNotReady", message))
}

/// Returns an error about tags that launches set. The schema refuses them, but not in classes that are older than it.
fn restricted_tags(spec: &EC2NodeClassSpec) -> Option<Verdict> {
    let is_of_cluster = |key: &str| {
        let name = key.strip_prefix("kubernetes.io/cluster/");
        name.is_some_and(|name| {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(is_plain)
        })
    };
    let keys = spec.tags.keys().map(String::as_str);
    let restricted = keys.filter(|key| RESTRICTED_TAGS.contains(key) || is_of_cluster(key));
    let restricted: Vec<_> = restricted.map(|key| format!("{key:?}")).collect();
    (!restricted.is_empty()).then(|| {
        let tags = restricted.join(", ");
        let message = format!("tags failed validation requirements (tags={tags})");
        Verdict::invalid("TagValidationFailed", message)
    })
}

/// Returns all that the result of a trial depends on.
fn fingerprint(class: &EC2NodeClass, cluster: &str) -> String {
    let status = class.status.as_ref();
    let found = status.map(|own| {
        json!([
            own.subnets,
            own.security_groups,
            own.amis,
            own.instance_profile
        ])
    });
    json!([found, class.spec, class.metadata.annotations, cluster]).to_string()
}

/// Tries a launch of a class. Returns the first call that IAM does not allow.
async fn trial(
    karpenter: &KarpenterContext,
    class: &EC2NodeClass,
) -> Result<Option<DeniedCall>, MarketError> {
    let market = karpenter.market(class).await?;
    let market = market.for_requests(&Default::default());
    karpenter.pools.synced().await;
    let pools = karpenter.pools.by_index(BY_CLASS, &class.name_any());
    let pools: Vec<_> = pools.iter().map(|pool| requirements(pool)).collect();
    // A policy may ask for the tag of the pool, but a class has no pool of its own.
    let mut request = class_request(&karpenter.options.cluster, class, &market, "");
    // A policy may forbid dedicated instances (AWS provider: `getTenancyType`).
    let mut tenancies = pools.iter().flat_map(|own| tenancies(own));
    if tenancies.any(|own| own == Tenancy::Dedicated) {
        request.template.tenancy = Tenancy::Dedicated;
    }
    let request = LaunchRequest {
        options: market.trial_options(&pools),
        ..request
    };
    Ok(karpenter.cloud.denied_call(request).await?)
}

/// Returns the requirements of a pool, and its labels as requirements.
fn requirements(pool: &NodePool) -> Vec<Requirement> {
    let template = &pool.spec.template;
    let labels = template.metadata.labels.iter();
    let labels = labels.map(|(key, value)| Requirement::is(key, value.as_str()));
    let own = template.spec.requirements.iter().cloned();
    own.chain(labels).collect()
}

/// Logs and judges the result of a trial.
fn judged(
    karpenter: &KarpenterContext,
    class: &EC2NodeClass,
    trial: Result<Option<DeniedCall>, MarketError>,
) -> Judgement {
    let subject = ("karpenter.k8s.aws", "EC2NodeClass");
    let pass = || {
        karpenter
            .log
            .reconciliation_of("nodeclass", subject, &class.name_any())
    };
    match trial {
        Ok(None) => Verdict::Valid.into(),
        Ok(Some(DeniedCall { call, message })) => {
            let error = CloudError::Unauthorized(message);
            pass().error(&format!("unauthorized to call {}", call.action()), &error);
            denied(call, &error).into()
        }
        Err(MarketError::Cloud(error)) if is_user_data_too_large(&error) => {
            let text = "ec2:CreateLaunchTemplate rejected the rendered user data as exceeding the size limit";
            pass().error(text, &error);
            too_large(&error).into()
        }
        Err(error) => {
            if let MarketError::Cloud(refused @ CloudError::Unfulfilled { .. }) = &error {
                let text = format!("validating ec2:RunInstances authorization, {refused}");
                pass().error("Reconciler error", &text);
            }
            let verdict = match &error {
                MarketError::Cloud(error) => missing_profile(&class.spec, error),
                MarketError::Template(_) => None,
            };
            Judgement {
                verdict: verdict.unwrap_or(Verdict::Open),
                retry: Some(error),
            }
        }
    }
}

fn denied(call: LaunchCall, error: &CloudError) -> Verdict {
    let reason = match call {
        LaunchCall::CreateLaunchTemplate => "CreateLaunchTemplateAuthCheckFailed",
        LaunchCall::CreateFleet => "CreateFleetAuthCheckFailed",
        LaunchCall::RunInstances => "RunInstancesAuthCheckFailed",
    };
    let (action, (_, why)) = (call.action(), reason_and_message(error));
    let message = format!("Controller isn't authorized to call {action}: {why}");
    Verdict::invalid(reason, message)
}

fn is_user_data_too_large(error: &CloudError) -> bool {
    let CloudError::Refused { code, message } = error else {
        return false;
    };
    code == "InvalidUserData.Malformed" && message.contains("User data is limited to")
}

fn too_large(error: &CloudError) -> Verdict {
    let (reason, why) = reason_and_message(error);
    let text = "ec2:CreateLaunchTemplate rejected the rendered user data as too large";
    Verdict::invalid(reason, format!("{text}: {why}"))
}

/// Returns the verdict on a class that names an instance profile which EC2 does not know. EC2 may only not know it yet, as it may
/// one that was just created for the class's role.
fn missing_profile(spec: &EC2NodeClassSpec, error: &CloudError) -> Option<Verdict> {
    let CloudError::Refused { code, message } = error else {
        return None;
    };
    let profile = spec.instance_profile.as_ref()?;
    let is_unknown =
        code == "InvalidParameterValue" && message.contains("Invalid IAM Instance Profile name");
    is_unknown.then(|| {
        let message = format!("Instance profile {profile:?} not found");
        Verdict::invalid("InstanceProfileNotFound", message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(spec: serde_json::Value) -> EC2NodeClass {
        let class = json!({ "metadata": { "name": "c" }, "spec": spec });
        serde_json::from_value(class).expect("a class")
    }

    fn reason(verdict: Option<Verdict>) -> &'static str {
        match verdict {
            Some(Verdict::Invalid { reason, .. }) => reason,
            _ => "",
        }
    }

    #[test]
    fn only_al2023_takes_any_setting_of_the_kubelet() {
        let judged = |family: &str, kubelet: serde_json::Value| {
            let class = class(json!({ "amiFamily": family, "kubelet": kubelet }));
            reason(static_error(&class, KubernetesVersion::NEWEST))
        };
        let passed = json!({ "registryPullQPS": 10 });
        let unsupported = "UnsupportedKubeletConfiguration";
        assert_eq!(judged("AL2023", passed.clone()), "");
        assert_eq!(judged("Windows2022", passed.clone()), unsupported);
        assert_eq!(judged("Bottlerocket", passed), unsupported);
        let per_core = json!({ "podsPerCore": 2 });
        assert_eq!(judged("Bottlerocket", per_core.clone()), unsupported);
        assert_eq!(judged("Windows2022", per_core), "");
    }

    #[test]
    fn tags_that_launches_set_are_refused() {
        let judged = |keys: &[&str]| {
            let tags: BTreeMap<_, _> = keys.iter().map(|key| (*key, "x")).collect();
            let class = class(json!({ "amiFamily": "AL2023", "tags": tags }));
            static_error(&class, KubernetesVersion::NEWEST)
        };
        for key in RESTRICTED_TAGS
            .into_iter()
            .chain(["kubernetes.io/cluster/demo_1"])
        {
            assert_eq!(reason(judged(&[key])), "TagValidationFailed", "{key}");
        }
        for key in [
            "team",
            "Name",
            "kubernetes.io/cluster/",
            "kubernetes.io/cluster/-a",
            "kubernetes.io/cluster/a.b",
        ] {
            assert_eq!(judged(&[key]), None, "{key}");
        }
        let both = judged(&["karpenter.sh/nodepool", "eks:eks-cluster-name", "team"]);
        let message = "tags failed validation requirements (tags=\"eks:eks-cluster-name\", \"karpenter.sh/nodepool\")";
        assert_eq!(both, Some(Verdict::invalid("TagValidationFailed", message)));
    }

    #[test]
    fn a_denied_call_is_told_in_upstreams_words() {
        let text = |call: LaunchCall, message: &str| {
            let error = CloudError::Unauthorized(message.to_owned());
            match denied(call, &error) {
                Verdict::Invalid { reason, message } => format!("{reason}: {message}"),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(
            text(LaunchCall::CreateFleet, ""),
            "CreateFleetAuthCheckFailed: Controller isn't authorized to call ec2:CreateFleet: User is not authorized to \
             perform this operation because no identity-based policy allows it"
        );
        assert_eq!(
            text(
                LaunchCall::RunInstances,
                "not authorized with an explicit deny in a service control policy"
            ),
            "RunInstancesAuthCheckFailed: Controller isn't authorized to call ec2:RunInstances: User is not authorized to \
             perform this operation due to a service control policy"
        );
        assert_eq!(
            text(
                LaunchCall::CreateLaunchTemplate,
                "not authorized with an explicit deny in a permissions boundary"
            ),
            "CreateLaunchTemplateAuthCheckFailed: Controller isn't authorized to call ec2:CreateLaunchTemplate: User is not \
             authorized to perform this operation due to a permission boundary"
        );
    }

    #[test]
    fn an_unknown_profile_is_told_if_the_class_names_it() {
        let error = CloudError::Refused {
            code: "InvalidParameterValue".to_owned(),
            message: "Value (mine) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name"
                .to_owned(),
        };
        let named = class(json!({ "instanceProfile": "mine" }));
        let expected = Verdict::invalid(
            "InstanceProfileNotFound",
            "Instance profile \"mine\" not found",
        );
        assert_eq!(missing_profile(&named.spec, &error), Some(expected));
        let of_role = class(json!({ "role": "nodes" }));
        assert_eq!(missing_profile(&of_role.spec, &error), None);
        assert_eq!(missing_profile(&named.spec, &CloudError::Throttled), None);
    }

    #[test]
    fn only_user_data_beyond_the_limit_is_too_large() {
        let refused = |message: &str| CloudError::Refused {
            code: "InvalidUserData.Malformed".to_owned(),
            message: message.to_owned(),
        };
        let too_long = refused("User data is limited to 16384 bytes");
        assert!(is_user_data_too_large(&too_long));
        assert!(!is_user_data_too_large(&refused(
            "Invalid BASE64 encoding of user data."
        )));
        assert_eq!(
            too_large(&too_long),
            Verdict::invalid(
                "UserDataSizeLimitExceeded",
                "ec2:CreateLaunchTemplate rejected the rendered user data as too large: Rendered user data exceeds the EC2 \
                 user data size limit"
            )
        );
    }
}
