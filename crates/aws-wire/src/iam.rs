//! IAM (API version 2010-05-08): the instance profiles that Karpenter creates for the roles of nodes, and those roles.
//!
//! Invariant: a profile has at most one role, and can be deleted only without a role.

use std::collections::BTreeMap;

use axum::{
    body::Body,
    http::{Response, StatusCode},
};
use jiff::Timestamp;

use crate::{
    Endpoint,
    ec2::{IdGenerator, respond, time},
    endpoint::Blocked,
    query::{ParamScope, Params},
    refusal::Refusal,
    xml::Xml,
};

const NAMESPACE: &str = "https://iam.amazonaws.com/doc/2010-05-08/";
/// The API version that identifies a request for IAM.
pub(crate) const VERSION: &str = "2010-05-08";

/// All instance profiles by name.
#[derive(Debug, Default)]
pub(crate) struct Profiles(BTreeMap<String, Profile>);

#[derive(Clone, Debug)]
struct Profile {
    id: String,
    path: String,
    role: Option<String>,
    tags: BTreeMap<String, String>,
    created: Timestamp,
}

struct Call<'a> {
    endpoint: &'a Endpoint,
    params: &'a Params,
    action: &'a str,
    request_id: &'a str,
}

/// Runs the action of a request and returns the response.
pub(crate) fn answer(endpoint: &Endpoint, params: &Params, request_id: &str) -> Response<Body> {
    let call = Call {
        endpoint,
        params,
        action: params.root().text("Action").unwrap_or_default(),
        request_id,
    };
    match call.run_action() {
        Ok(xml) => respond(StatusCode::OK, xml),
        Err(refusal) => refuse(&refusal, NAMESPACE, request_id),
    }
}

/// Writes a refusal as services of the Query protocol other than EC2 do.
pub(crate) fn refuse(refusal: &Refusal, namespace: &str, request_id: &str) -> Response<Body> {
    let xml = Xml::document("ErrorResponse", Some(namespace), |xml| {
        xml.node("Error", |xml| {
            xml.leaf("Type", "Sender");
            xml.leaf("Code", &refusal.code);
            xml.leaf("Message", &refusal.message);
        });
        xml.leaf("RequestId", request_id);
    });
    respond(refusal.status, xml)
}

/// Refuses calls as services of the Query protocol other than EC2 do.
pub(crate) fn admit(endpoint: &Endpoint, service: &str, action: &str) -> Result<(), Refusal> {
    endpoint
        .admit(service, action)
        .map_err(|blocked| match blocked {
            Blocked::Throttled => Refusal::new("Throttling", "Rate exceeded"),
            Blocked::Denied(why) => Refusal::with(StatusCode::FORBIDDEN, "AccessDenied", why),
        })
}

fn no_entity(message: String) -> Refusal {
    Refusal::with(StatusCode::NOT_FOUND, "NoSuchEntity", message)
}

fn conflict(code: &str, message: String) -> Refusal {
    Refusal::with(StatusCode::CONFLICT, code, message)
}

impl Call<'_> {
    fn run_action(&self) -> Result<Vec<u8>, Refusal> {
        admit(self.endpoint, "iam", self.action)?;
        match self.action {
            "AddRoleToInstanceProfile" => self.add_role(),
            "CreateInstanceProfile" => self.create(),
            "DeleteInstanceProfile" => self.delete(),
            "GetInstanceProfile" => self.get(),
            "GetRole" => self.role(),
            "ListInstanceProfiles" => self.list(),
            "RemoveRoleFromInstanceProfile" => self.remove_role(),
            "TagInstanceProfile" => self.tag(),
            other => Err(Refusal::new(
                "InvalidAction",
                format!("Could not find operation {other} for version {VERSION}"),
            )),
        }
    }

    fn name(&self) -> Result<String, Refusal> {
        let name = self.params.root().required("InstanceProfileName")?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "+=,.@_-".contains(c);
        if name.len() <= 128 && name.chars().all(is_plain) {
            Ok(name.to_owned())
        } else {
            Err(Refusal::new(
                "ValidationError",
                "The specified value for instanceProfileName is invalid. It must contain only alphanumeric characters and/or the following: +=,.@_-, 128 at most",
            ))
        }
    }

    fn known_role(&self) -> Result<String, Refusal> {
        let name = self.params.root().required("RoleName")?;
        if self.endpoint.has_role(name) {
            Ok(name.to_owned())
        } else {
            Err(no_entity(format!(
                "The role with name {name} cannot be found."
            )))
        }
    }

    fn create(&self) -> Result<Vec<u8>, Refusal> {
        let root = self.params.root();
        let name = self.name()?;
        let path = root.text("Path").unwrap_or("/").to_owned();
        let tags = tags(&root)?;
        self.params.complete()?;
        let id = self.endpoint.state().ids.principal("AIPA");
        let profiles = &mut self.endpoint.profiles().0;
        if profiles.contains_key(&name) {
            return Err(conflict(
                "EntityAlreadyExists",
                format!("Instance Profile {name} already exists."),
            ));
        }
        let profile = Profile {
            id,
            path,
            role: None,
            tags,
            created: Timestamp::now(),
        };
        let answer = self.result(|xml| {
            xml.node("InstanceProfile", |xml| self.write(xml, &name, &profile));
        });
        profiles.insert(name, profile);
        Ok(answer)
    }

    fn get(&self) -> Result<Vec<u8>, Refusal> {
        let name = self.name()?;
        self.params.complete()?;
        let mut profiles = self.endpoint.profiles();
        let profile = profiles.find(&name)?;
        Ok(self.result(|xml| {
            xml.node("InstanceProfile", |xml| self.write(xml, &name, profile));
        }))
    }

    fn delete(&self) -> Result<Vec<u8>, Refusal> {
        let name = self.name()?;
        self.params.complete()?;
        let mut profiles = self.endpoint.profiles();
        if profiles.find(&name)?.role.is_some() {
            return Err(conflict(
                "DeleteConflict",
                "Cannot delete entity, must remove roles from instance profile first.".to_owned(),
            ));
        }
        profiles.0.remove(&name);
        Ok(self.empty_response())
    }

    fn add_role(&self) -> Result<Vec<u8>, Refusal> {
        let name = self.name()?;
        let role = self.known_role()?;
        self.params.complete()?;
        let mut profiles = self.endpoint.profiles();
        let profile = profiles.find(&name)?;
        if profile.role.is_some() {
            return Err(conflict(
                "LimitExceeded",
                "Cannot exceed quota for InstanceSessionsPerInstanceProfile: 1".to_owned(),
            ));
        }
        profile.role = Some(role);
        Ok(self.empty_response())
    }

    fn remove_role(&self) -> Result<Vec<u8>, Refusal> {
        let name = self.name()?;
        let role = self.params.root().required("RoleName")?.to_owned();
        self.params.complete()?;
        let mut profiles = self.endpoint.profiles();
        let profile = profiles.find(&name)?;
        if profile.role.as_ref() != Some(&role) {
            return Err(no_entity(format!(
                "The role with name {role} cannot be found in instance profile {name}."
            )));
        }
        profile.role = None;
        Ok(self.empty_response())
    }

    fn tag(&self) -> Result<Vec<u8>, Refusal> {
        let name = self.name()?;
        let tags = tags(&self.params.root())?;
        self.params.complete()?;
        self.endpoint.profiles().find(&name)?.tags.extend(tags);
        Ok(self.empty_response())
    }

    fn list(&self) -> Result<Vec<u8>, Refusal> {
        let root = self.params.root();
        let prefix = root.text("PathPrefix").unwrap_or("/");
        let most = root.number("MaxItems")?.unwrap_or(100);
        let most = usize::try_from(most)
            .ok()
            .filter(|most| (1..=1000).contains(most));
        let most = most.ok_or_else(|| {
            Refusal::new(
                "ValidationError",
                "MaxItems must be a number from 1 to 1000",
            )
        })?;
        // A marker is the last name of the page before, so it stays valid when profiles are created and deleted.
        let after = root.text("Marker").unwrap_or_default();
        self.params.complete()?;
        let profiles = &self.endpoint.profiles().0;
        let all = profiles
            .iter()
            .filter(|(name, own)| own.path.starts_with(prefix) && name.as_str() > after);
        let all: Vec<_> = all.collect();
        let is_more = all.len() > most;
        let page = &all[..most.min(all.len())];
        Ok(self.result(|xml| {
            xml.node("InstanceProfiles", |xml| {
                for (name, own) in page {
                    xml.node("member", |xml| self.write(xml, name, own));
                }
            });
            xml.leaf("IsTruncated", is_more);
            let last = page.last().filter(|_| is_more);
            xml.maybe("Marker", last.map(|(name, _)| name));
        }))
    }

    fn role(&self) -> Result<Vec<u8>, Refusal> {
        let name = self.known_role()?;
        self.params.complete()?;
        Ok(self.result(|xml| xml.node("Role", |xml| self.write_role(xml, &name))))
    }

    fn write(&self, xml: &mut Xml, name: &str, own: &Profile) {
        let account = &self.endpoint.settings().account_id;
        xml.leaf("InstanceProfileName", name);
        xml.leaf("InstanceProfileId", &own.id);
        let path = &own.path;
        let arn = format!("arn:aws:iam::{account}:instance-profile{path}{name}");
        xml.leaf("Arn", arn);
        xml.leaf("Path", path);
        xml.leaf("CreateDate", time(own.created));
        xml.node("Roles", |xml| {
            if let Some(role) = &own.role {
                xml.node("member", |xml| self.write_role(xml, role));
            }
        });
        xml.node("Tags", |xml| {
            for (key, value) in &own.tags {
                xml.node("member", |xml| {
                    xml.leaf("Key", key);
                    xml.leaf("Value", value);
                });
            }
        });
    }

    fn write_role(&self, xml: &mut Xml, name: &str) {
        let account = &self.endpoint.settings().account_id;
        xml.leaf("RoleName", name);
        xml.leaf("RoleId", IdGenerator::of_name("AROA", name));
        xml.leaf("Arn", format!("arn:aws:iam::{account}:role/{name}"));
        xml.leaf("Path", "/");
        // Roles exist before the endpoint starts, so their date is a fixed one in the past.
        xml.leaf("CreateDate", "2025-01-01T00:00:00Z");
    }

    fn result(&self, content: impl FnOnce(&mut Xml)) -> Vec<u8> {
        let action = self.action;
        Xml::document(&format!("{action}Response"), Some(NAMESPACE), |xml| {
            xml.node(&format!("{action}Result"), content);
            metadata(xml, self.request_id);
        })
    }

    fn empty_response(&self) -> Vec<u8> {
        let root = format!("{}Response", self.action);
        Xml::document(&root, Some(NAMESPACE), |xml| metadata(xml, self.request_id))
    }
}

/// Writes the element that ends a response of the Query protocol.
pub(crate) fn metadata(xml: &mut Xml, request_id: &str) {
    xml.node("ResponseMetadata", |xml| xml.leaf("RequestId", request_id));
}

impl Profiles {
    fn find(&mut self, name: &str) -> Result<&mut Profile, Refusal> {
        let found = self.0.get_mut(name);
        found.ok_or_else(|| no_entity(format!("Instance Profile {name} cannot be found.")))
    }
}

fn tags(root: &ParamScope<'_>) -> Result<BTreeMap<String, String>, Refusal> {
    let mut tags = BTreeMap::new();
    for tag in root.each("Tags.member") {
        let value = tag.text("Value").unwrap_or_default();
        tags.insert(tag.required("Key")?.to_owned(), value.to_owned());
    }
    Ok(tags)
}
