//! A simulated AWS account, which answers from a custom resource ([`mullion_api::account::SimulatedAccount`]).
//!
//! Invariant: the actions in `spec.denied` are refused, and a refused change changes nothing.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use mullion_api::account::{
    AccessEntry, EksCluster, FargateProfile, Image, SimulatedAccountSpec, SimulatedAccountStatus,
    SubnetFacts,
};

use crate::{Account, AccountChange, AccountError, BoxFuture, Instances};

/// A simulated account.
#[derive(Debug)]
pub struct SimulatedAccount {
    spec: Mutex<SimulatedAccountSpec>,
    status: SimulatedAccountStatus,
}

impl SimulatedAccount {
    /// Returns the account that a custom resource describes.
    pub fn new(spec: SimulatedAccountSpec, status: SimulatedAccountStatus) -> Self {
        Self {
            spec: Mutex::new(spec),
            status,
        }
    }

    /// Returns the spec of the custom resource after the changes that were made.
    pub fn spec(&self) -> SimulatedAccountSpec {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, SimulatedAccountSpec> {
        // After a panic while the lock was held, at worst a change is missing.
        self.spec.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a call unless one of its actions is denied.
    fn answer<T>(
        &self,
        actions: &[&'static str],
        read: impl FnOnce(&mut SimulatedAccountSpec) -> Result<T, AccountError>,
    ) -> Result<T, AccountError> {
        let mut spec = self.lock();
        let denied = |action: &&&'static str| spec.denied.iter().any(|own| own == **action);
        // Permissions are checked before anything is read or changed, as IAM does.
        if let Some(action) = actions.iter().find(denied) {
            return Err(AccountError::Denied(action));
        }
        read(&mut spec)
    }
}

impl Account for SimulatedAccount {
    fn cluster(&self) -> BoxFuture<'_, Result<EksCluster, AccountError>> {
        Box::pin(async { self.answer(&["eks:DescribeCluster"], |spec| Ok(spec.cluster.clone())) })
    }

    fn attached_policies<'a>(
        &'a self,
        role: &'a str,
    ) -> BoxFuture<'a, Result<Vec<String>, AccountError>> {
        Box::pin(async move {
            self.answer(&["iam:ListAttachedRolePolicies"], |spec| {
                let found = spec.roles.get(role);
                let found = found.map(|found| found.policies.clone());
                found.ok_or_else(|| AccountError::NoSuchEntity(format!("the role {role}")))
            })
        })
    }

    fn access_entries(&self) -> BoxFuture<'_, Result<BTreeMap<String, AccessEntry>, AccountError>> {
        Box::pin(async {
            self.answer(
                &["eks:ListAccessEntries", "eks:DescribeAccessEntry"],
                |spec| Ok(spec.access_entries.clone()),
            )
        })
    }

    fn fargate_profiles(
        &self,
    ) -> BoxFuture<'_, Result<BTreeMap<String, FargateProfile>, AccountError>> {
        Box::pin(async {
            self.answer(
                &["eks:ListFargateProfiles", "eks:DescribeFargateProfile"],
                |spec| Ok(spec.fargate_profiles.clone()),
            )
        })
    }

    fn instances(&self) -> BoxFuture<'_, Result<Instances, AccountError>> {
        Box::pin(async {
            self.answer(&["ec2:DescribeInstances"], |_| {
                Ok(Instances {
                    windows: self.status.instances.clone(),
                    linux_profiles: self.status.linux_profiles.clone(),
                })
            })
        })
    }

    fn role_of<'a>(&'a self, profile: &'a str) -> BoxFuture<'a, Result<String, AccountError>> {
        Box::pin(async move {
            self.answer(&["iam:GetInstanceProfile"], |spec| {
                let found = spec.instance_profiles.get(profile);
                let found = found.map(|found| found.role.clone());
                found.ok_or_else(|| {
                    AccountError::NoSuchEntity(format!("the instance profile {profile}"))
                })
            })
        })
    }

    fn subnets(&self) -> BoxFuture<'_, Result<BTreeMap<String, SubnetFacts>, AccountError>> {
        Box::pin(async {
            self.answer(
                &["ec2:DescribeSubnets", "ec2:DescribeNetworkInterfaces"],
                |_| Ok(self.status.subnets.clone()),
            )
        })
    }

    fn images(&self) -> BoxFuture<'_, Result<BTreeMap<String, Image>, AccountError>> {
        Box::pin(async {
            self.answer(&["ssm:GetParameter", "ec2:DescribeImages"], |spec| {
                Ok(spec.images.clone())
            })
        })
    }

    fn change<'a>(&'a self, change: &'a AccountChange) -> BoxFuture<'a, Result<(), AccountError>> {
        Box::pin(async move {
            match change {
                AccountChange::AttachPolicy { role, policy } => {
                    self.answer(&["iam:AttachRolePolicy"], |spec| {
                        let found = spec.roles.get_mut(role);
                        let found = found.ok_or_else(|| {
                            AccountError::NoSuchEntity(format!("the role {role}"))
                        })?;
                        if !found.policies.contains(policy) {
                            found.policies.push(policy.clone());
                        }
                        Ok(())
                    })
                }
                AccountChange::CreateAccessEntry { role, kind, .. } => {
                    self.answer(&["eks:CreateAccessEntry"], |spec| {
                        if spec.access_entries.contains_key(role) {
                            let text = format!("an access entry of the role {role}");
                            return Err(AccountError::Exists(text));
                        }
                        let entry = AccessEntry { kind: kind.clone() };
                        spec.access_entries.insert(role.clone(), entry);
                        Ok(())
                    })
                }
                AccountChange::DeleteAccessEntry { role, .. } => {
                    self.answer(&["eks:DeleteAccessEntry"], |spec| {
                        let removed = spec.access_entries.remove(role);
                        let text = || format!("an access entry of the role {role}");
                        removed
                            .map(drop)
                            .ok_or_else(|| AccountError::NoSuchEntity(text()))
                    })
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_denied_is_refused_by_its_name_and_changes_nothing() {
        let spec = SimulatedAccountSpec {
            roles: BTreeMap::from([("cluster".to_owned(), Default::default())]),
            denied: vec!["iam:AttachRolePolicy".to_owned()],
            ..SimulatedAccountSpec::default()
        };
        let account = SimulatedAccount::new(spec.clone(), SimulatedAccountStatus::default());
        let change = AccountChange::AttachPolicy {
            role: "cluster".to_owned(),
            policy: "P".to_owned(),
        };
        let refused = account.change(&change).await.unwrap_err();
        assert_eq!(
            refused.to_string(),
            "AccessDenied: not authorized to perform iam:AttachRolePolicy"
        );
        assert_eq!(account.spec(), spec);
        assert_eq!(account.attached_policies("cluster").await, Ok(Vec::new()));
    }

    #[tokio::test]
    async fn an_access_entry_is_created_once_and_its_type_changes_by_deleting_it() {
        let account = SimulatedAccount::new(Default::default(), Default::default());
        let create = |kind: &str| AccountChange::CreateAccessEntry {
            cluster: "c".to_owned(),
            role: "nodes".to_owned(),
            kind: kind.to_owned(),
        };
        account.change(&create("EC2_LINUX")).await.unwrap();
        let twice = account.change(&create("EC2_WINDOWS")).await;
        assert!(matches!(twice, Err(AccountError::Exists(_))), "{twice:?}");
        let delete = AccountChange::DeleteAccessEntry {
            cluster: "c".to_owned(),
            role: "nodes".to_owned(),
        };
        account.change(&delete).await.unwrap();
        account.change(&create("EC2_WINDOWS")).await.unwrap();
        assert_eq!(
            account.access_entries().await.unwrap()["nodes"].kind,
            "EC2_WINDOWS"
        );
    }
}
