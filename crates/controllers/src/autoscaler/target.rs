//! The object that an autoscaler scales: any kind with a scale subresource.

use std::time::Duration;

use k8s_openapi::api::autoscaling::{v1::Scale, v2::CrossVersionObjectReference};
use kube::{
    Api, Client,
    api::PostParams,
    core::DynamicObject,
    discovery::{self, ApiResource},
};

use crate::api_error;

/// How many times a write of the Scale is tried after conflicts, and the pause between two tries
/// (client-go: `retry.DefaultRetry`).
const TRIES: usize = 5;
const PAUSE: Duration = Duration::from_millis(10);

/// A scale target: how to reach it and its Scale as last read.
pub(super) struct Target {
    api: Api<DynamicObject>,
    name: String,
    pub(super) scale: Scale,
}

/// Why the Scale of a target cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum TargetError {
    #[error("unexpected GroupVersion string: {0}")]
    Version(String),
    #[error("no matches for kind {kind:?} in group {group:?}")]
    Kind { kind: String, group: String },
    #[error("{}", api_error::message(.0))]
    Api(#[from] kube::Error),
}

impl Target {
    /// Finds the target's kind by discovery and reads its Scale. Every served version of the group
    /// is tried, and the first error is returned if none works.
    pub(super) async fn find(
        client: &Client,
        namespace: &str,
        reference: &CrossVersionObjectReference,
    ) -> Result<Self, TargetError> {
        let group = group_of(reference.api_version.as_deref().unwrap_or_default())?;
        let mut first = None;
        // The version in the reference is ignored, as in kube-controller-manager: only the group and the kind
        // identify it.
        for resource in mappings(client, group, &reference.kind).await? {
            let api = Api::namespaced_with(client.clone(), namespace, &resource);
            match api.get_scale(&reference.name).await {
                Ok(scale) => {
                    return Ok(Self {
                        api,
                        name: reference.name.clone(),
                        scale,
                    });
                }
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(match first {
            Some(error) => error.into(),
            None => TargetError::Kind {
                kind: reference.kind.clone(),
                group: group.to_owned(),
            },
        })
    }

    /// Returns the Scale's `spec.replicas`.
    pub(super) fn replicas(&self) -> i32 {
        let spec = self.scale.spec.as_ref();
        spec.and_then(|spec| spec.replicas).unwrap_or_default()
    }

    /// Returns the label selector in the Scale's status; empty if there is none.
    pub(super) fn selector(&self) -> &str {
        let status = self.scale.status.as_ref();
        status
            .and_then(|status| status.selector.as_deref())
            .unwrap_or_default()
    }

    /// Sets the Scale's replicas. After a conflict the Scale is read again and the write is
    /// retried.
    pub(super) async fn rescale(&mut self, replicas: i32) -> kube::Result<()> {
        let mut tries = 0;
        loop {
            self.scale.spec.get_or_insert_default().replicas = Some(replicas);
            let params = PostParams::default();
            let written = self
                .api
                .replace_scale(&self.name, &params, &self.scale)
                .await;
            tries += 1;
            match written {
                Err(error) if api_error::is_conflict(&error) && tries < TRIES => {
                    // If the read fails, the next write fails as well and its error is returned.
                    if let Ok(latest) = self.api.get_scale(&self.name).await {
                        self.scale = latest;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
                written => return written.map(drop),
            }
        }
    }
}

fn group_of(api_version: &str) -> Result<&str, TargetError> {
    match api_version.split_once('/') {
        None => Ok(""),
        Some((group, version)) if !version.contains('/') => Ok(group),
        Some(_) => Err(TargetError::Version(api_version.to_owned())),
    }
}

/// Returns the resource of `kind` in each version of its group, the preferred version first.
async fn mappings(
    client: &Client,
    group: &str,
    kind: &str,
) -> Result<Vec<ApiResource>, TargetError> {
    let found = match discovery::group(client, group).await {
        Ok(found) => found,
        Err(kube::Error::Discovery(_)) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let mut versions: Vec<&str> = found.versions().collect();
    if let Some(at) = found
        .preferred_version()
        .and_then(|preferred| versions.iter().position(|version| *version == preferred))
    {
        // Moves the preferred version to the front and keeps the order of the others.
        versions[..=at].rotate_right(1);
    }
    let of_version = |version| {
        let all = found.versioned_resources(version).into_iter();
        all.map(|(resource, _)| resource)
            .find(|resource| resource.kind == kind)
    };
    Ok(versions.into_iter().filter_map(of_version).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_group_of_an_api_version_counts() {
        assert_eq!(group_of("apps/v1beta9").expect("a group"), "apps");
        assert_eq!(group_of("v1").expect("core"), "");
        assert_eq!(group_of("").expect("core"), "");
        let refused = group_of("a/b/c").expect_err("two slashes");
        assert_eq!(refused.to_string(), "unexpected GroupVersion string: a/b/c");
    }
}
