//! Instance profiles, which are created if a class names a role; the name of a profile follows from region, class and role.
//!
//! Invariant: the role of a profile never changes. A class whose role changes gets another profile, and running machines keep theirs. The
//! profile in a class's status is kept as long as it has the class's role, whichever program created it. A class of Karpenter's therefore
//! keeps Karpenter's profile, and the other way round.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use mullion_api::{karpenter::EC2NodeClass, labels};
use mullion_cloud::CloudError;
use sha2::{Digest, Sha256};

use super::{Dated, Inner, errors::Failed, forget_older, lock, templates::CLUSTER_TAG};
use crate::limits::Kind;

/// The time for which a profile is assumed to exist (AWS provider: `InstanceProfileTTL`).
const THERE_FOR: Duration = Duration::from_secs(900);

/// Names and roles of profiles that recently existed with that role.
#[derive(Debug, Default)]
pub(super) struct Profiles(BTreeMap<(String, String), Dated<()>>);

impl Inner {
    pub(super) async fn instance_profile(
        &self,
        class: &EC2NodeClass,
        cluster: &str,
    ) -> Result<String, CloudError> {
        if let Some(profile) = &class.spec.instance_profile {
            return Ok(profile.clone());
        }
        let class_name = class.metadata.name.as_deref().unwrap_or_default();
        let role = class.spec.role.as_deref().filter(|role| !role.is_empty());
        let role = role.ok_or_else(|| {
            CloudError::Invalid(format!(
                "EC2NodeClass {class_name:?} names neither a role nor an instance profile"
            ))
        })?;
        let of_status = class.status.as_ref().map(|own| &own.instance_profile);
        if let Some(name) = of_status.filter(|name| !name.is_empty())
            && (self.is_known(name, role) || self.has_role(name, role).await?)
        {
            self.know(name, role);
            return Ok(name.clone());
        }
        let name = profile_name(cluster, &self.region, class_name, role);
        if !self.is_known(&name, role) {
            self.ensure_profile(class, cluster, &name, role).await?;
            self.know(&name, role);
        }
        Ok(name)
    }

    /// Returns whether a profile recently had a role.
    fn is_known(&self, name: &str, role: &str) -> bool {
        let mut profiles = lock(&self.profiles);
        forget_older(&mut profiles.0, THERE_FOR);
        profiles.0.contains_key(&(name.to_owned(), role.to_owned()))
    }

    fn know(&self, name: &str, role: &str) {
        let profiles = &mut lock(&self.profiles).0;
        profiles
            .entry((name.to_owned(), role.to_owned()))
            .or_insert_with(|| Dated::now(()));
    }

    /// Asks IAM whether a profile of this name has this role.
    async fn has_role(&self, name: &str, role: &str) -> Result<bool, Failed> {
        self.may(Kind::Other).await;
        let call = self.iam.get_instance_profile().instance_profile_name(name);
        match call.send().await.map_err(Failed::of) {
            Ok(answer) => {
                let roles = answer.instance_profile.map(|own| own.roles);
                let roles = roles.unwrap_or_default();
                Ok(roles.first().map(|own| own.role_name()) == Some(without_path(role)))
            }
            Err(failed) if failed.is_not_found() => Ok(false),
            Err(failed) => Err(failed),
        }
    }

    async fn ensure_profile(
        &self,
        class: &EC2NodeClass,
        cluster: &str,
        name: &str,
        role: &str,
    ) -> Result<(), Failed> {
        self.may(Kind::Other).await;
        let call = self.iam.get_instance_profile().instance_profile_name(name);
        let roles = match call.send().await.map_err(Failed::of) {
            Ok(answer) => {
                let profile = answer.instance_profile;
                profile.map(|own| own.roles).unwrap_or_default()
            }
            Err(failed) if failed.is_not_found() => {
                self.create_profile(class, cluster, name).await?;
                Vec::new()
            }
            Err(failed) => return Err(failed),
        };
        // The role is part of the profile's name, so a profile of this name has no other role.
        if !roles.is_empty() {
            return Ok(());
        }
        self.may(Kind::Other).await;
        let call = self
            .iam
            .add_role_to_instance_profile()
            .instance_profile_name(name)
            .role_name(without_path(role));
        match call.send().await.map_err(Failed::of) {
            Ok(_) => Ok(()),
            // Another process has added the role already.
            Err(failed) if failed.is("LimitExceeded") => Ok(()),
            Err(failed) => Err(failed),
        }
    }

    async fn create_profile(
        &self,
        class: &EC2NodeClass,
        cluster: &str,
        name: &str,
    ) -> Result<(), Failed> {
        self.may(Kind::Other).await;
        let class_name = class.metadata.name.clone().unwrap_or_default();
        let mut tags = class.spec.tags.clone();
        tags.extend([
            (
                format!("kubernetes.io/cluster/{cluster}"),
                "owned".to_owned(),
            ),
            (CLUSTER_TAG.to_owned(), cluster.to_owned()),
            (labels::EC2NODECLASS.to_owned(), class_name),
            (labels::REGION.to_owned(), self.region.clone()),
        ]);
        let tags: Result<Vec<_>, _> = tags
            .iter()
            .map(|(key, value)| {
                let tag = aws_sdk_iam::types::Tag::builder();
                tag.key(key).value(value).build()
            })
            .collect();
        let tags = tags.map_err(|error| Failed {
            code: None,
            message: error.to_string(),
        })?;
        let uid = class.metadata.uid.as_deref().unwrap_or("none");
        let call = self
            .iam
            .create_instance_profile()
            .instance_profile_name(name)
            .path(format!("/karpenter/{}/{cluster}/{uid}/", self.region))
            .set_tags(Some(tags));
        match call.send().await.map_err(Failed::of) {
            Ok(_) => Ok(()),
            Err(failed) if failed.is("EntityAlreadyExists") => Ok(()),
            Err(failed) => Err(failed),
        }
    }
}

/// Returns a role's name without its path, which IAM's calls do not accept.
fn without_path(role: &str) -> &str {
    role.rsplit('/').next().unwrap_or(role)
}

/// Returns the name of a profile. IAM is global, so the region is part of the hash in the name.
fn profile_name(cluster: &str, region: &str, class: &str, role: &str) -> String {
    let digest = Sha256::digest(format!("{region}\n{class}\n{role}"));
    // Names in IAM have at most 128 characters, 21 of which are the hash.
    let mut name: String = cluster.chars().take(100).collect();
    name.push('_');
    for byte in &digest[..10] {
        write!(name, "{byte:02x}").expect("a string takes all");
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_role_of_each_class_in_each_region_has_its_own_profile() {
        let plain = profile_name("demo", "us-west-2", "web", "nodes");
        assert_eq!(plain, profile_name("demo", "us-west-2", "web", "nodes"));
        assert!(plain.starts_with("demo_") && plain.len() == 25);
        for other in [
            profile_name("demo", "us-east-1", "web", "nodes"),
            profile_name("demo", "us-west-2", "jobs", "nodes"),
            profile_name("demo", "us-west-2", "web", "others"),
        ] {
            assert_ne!(plain, other);
        }
        assert!(profile_name(&"x".repeat(200), "r", "c", "r").len() <= 128);
    }
}
