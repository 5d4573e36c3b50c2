//! Launch templates. Each has one version, because Karpenter creates a new template for every change.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{Call, EndpointState, launch::LaunchSpec, write_tags};
use crate::{
    filter::{Filters, one},
    page::{self, Page},
    query::ParamScope,
    refusal::Refusal,
    xml::Xml,
};

/// A launch template.
#[derive(Clone, Debug)]
pub(super) struct LaunchTemplate {
    pub(super) id: String,
    pub(super) name: String,
    created: Timestamp,
    tags: BTreeMap<String, String>,
    pub(super) spec: LaunchSpec,
    /// The client token and the parameters of the request that created the template.
    token: Option<(String, String)>,
}

/// CreateLaunchTemplate.
pub(super) fn create(call: &Call<'_>) -> Result<Vec<u8>, Refusal> {
    let root = call.root();
    let name = root.required("LaunchTemplateName")?;
    check_name(name)?;
    let data = root.at("LaunchTemplateData");
    if !data.is_given() {
        return Err(Refusal::missing("LaunchTemplateData"));
    }
    let spec = LaunchSpec::of_template(&data)?;
    let tags = tags_for(&root, "launch-template")?;
    let token = root.text("ClientToken");
    root.accept(&["VersionDescription"]);
    call.complete()?;
    let fingerprint = call.params.fingerprint();
    let mut state = call.state();
    let repeated = state.templates.iter().find(|own| {
        let own = own.token.as_ref().map(|(token, _)| token.as_str());
        token.is_some() && own == token
    });
    if let Some(own) = repeated {
        let is_same = own
            .token
            .as_ref()
            .is_some_and(|(_, own)| *own == fingerprint);
        return if is_same {
            Ok(call.answer(|xml| xml.node("launchTemplate", |xml| write(xml, call, own))))
        } else {
            Err(super::launch::mismatch())
        };
    }
    if state.templates.iter().any(|own| own.name == name) {
        return Err(Refusal::new(
            "InvalidLaunchTemplateName.AlreadyExistsException",
            "Launch template name already in use.",
        ));
    }
    let template = LaunchTemplate {
        id: state.ids.resource("lt"),
        name: name.to_owned(),
        created: Timestamp::now(),
        tags,
        spec,
        token: token.map(|token| (token.to_owned(), fingerprint)),
    };
    let answer = call.answer(|xml| xml.node("launchTemplate", |xml| write(xml, call, &template)));
    state.templates.push(template);
    Ok(answer)
}

fn check_name(name: &str) -> Result<(), Refusal> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "().-/_".contains(c);
    if (3..=128).contains(&name.len()) && name.chars().all(is_plain) {
        Ok(())
    } else {
        Err(Refusal::new(
            "InvalidLaunchTemplateName.MalformedException",
            "Launch template name is invalid. Names must have 3 to 128 characters: letters, digits and ( ) . - / _",
        ))
    }
}

/// DescribeLaunchTemplates.
pub(super) fn describe(call: &Call<'_>) -> Result<Vec<u8>, Refusal> {
    let root = call.root();
    let ids = root.list("LaunchTemplateId");
    let names = root.list("LaunchTemplateName");
    let filters = Filters::read(&root)?;
    let page = Page::read(&root, 1..=200, 200)?;
    call.complete()?;
    let state = call.state();
    for name in &names {
        state.template(&TemplateRef::Name((*name).to_owned()))?;
    }
    for id in &ids {
        state.template(&TemplateRef::Id((*id).to_owned()))?;
    }
    let mut found = Vec::new();
    for own in &state.templates {
        let is_named = (ids.is_empty() && names.is_empty())
            || ids.contains(&own.id.as_str())
            || names.contains(&own.name.as_str());
        let find = |name: &str| match name {
            "launch-template-name" => one(&own.name),
            "create-time" => one(time(own.created)),
            _ => None,
        };
        if filters.match_all(&own.tags, find)? && is_named {
            found.push(own);
        }
    }
    let (found, token) = page.take(found, |own| own.id.clone());
    Ok(call.answer(|xml| {
        xml.list("launchTemplates", found, |xml, own| write(xml, call, own));
        page::next(xml, token);
    }))
}

/// DeleteLaunchTemplate.
pub(super) fn delete(call: &Call<'_>) -> Result<Vec<u8>, Refusal> {
    let named = TemplateRef::read(&call.root())?;
    call.complete()?;
    let mut state = call.state();
    let own = state.template(&named)?.clone();
    state.templates.retain(|other| other.id != own.id);
    Ok(call.answer(|xml| xml.node("launchTemplate", |xml| write(xml, call, &own))))
}

/// A reference to a launch template in a request.
#[derive(Clone, Debug)]
pub(super) enum TemplateRef {
    Id(String),
    Name(String),
}

impl TemplateRef {
    /// Reads `LaunchTemplateId` or `LaunchTemplateName`.
    pub(super) fn read(at: &ParamScope<'_>) -> Result<Self, Refusal> {
        match (at.text("LaunchTemplateId"), at.text("LaunchTemplateName")) {
            (Some(id), None) => Ok(Self::Id(id.to_owned())),
            (None, Some(name)) => Ok(Self::Name(name.to_owned())),
            (None, None) => Err(Refusal::new(
                "MissingParameter",
                "Either a launch template ID or a launch template name must be specified in the request.",
            )),
            (Some(_), Some(_)) => Err(Refusal::new(
                "InvalidParameterCombination",
                "A launch template ID and a launch template name must not both be specified in the request.",
            )),
        }
    }
}

impl EndpointState {
    /// Returns a template.
    ///
    /// # Errors
    /// EC2's code and message for one that does not exist.
    pub(super) fn template(&self, named: &TemplateRef) -> Result<&LaunchTemplate, Refusal> {
        let mut all = self.templates.iter();
        match named {
            TemplateRef::Id(id) => all.find(|own| own.id == *id).ok_or_else(|| {
                Refusal::new(
                    "InvalidLaunchTemplateId.NotFound",
                    format!(
                        "The specified launch template, with template ID {id}, does not exist."
                    ),
                )
            }),
            TemplateRef::Name(name) => all.find(|own| own.name == *name).ok_or_else(|| {
                Refusal::new(
                    "InvalidLaunchTemplateName.NotFoundException",
                    format!(
                        "The specified launch template, with template name {name}, does not exist."
                    ),
                )
            }),
        }
    }
}

impl EndpointState {
    /// Returns the tags of the template of an id.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn template_tags(
        &mut self,
        id: &str,
    ) -> Result<&mut BTreeMap<String, String>, Refusal> {
        let mut all = self.templates.iter_mut();
        let found = all.find(|own| own.id == id);
        found
            .map(|own| &mut own.tags)
            .ok_or_else(|| Refusal::new("InvalidID", format!("The ID '{id}' is not valid")))
    }
}

/// Refuses versions that there are not.
pub(super) fn check_version(template: &LaunchTemplate, version: &str) -> Result<(), Refusal> {
    match version {
        "$Latest" | "$Default" | "1" => Ok(()),
        other => Err(Refusal::new(
            "InvalidLaunchTemplateId.VersionNotFound",
            format!(
                "Could not find the specified version {other} for the launch template with ID {}.",
                template.id
            ),
        )),
    }
}

/// Reads the tags that a request has for a type of resource.
pub(super) fn tags_for(
    at: &ParamScope<'_>,
    kind: &str,
) -> Result<BTreeMap<String, String>, Refusal> {
    let mut tags = BTreeMap::new();
    for given in at.each("TagSpecification") {
        let own = given.required("ResourceType")?;
        let given = tags_of(&given)?;
        if own == kind {
            tags.extend(given);
        }
    }
    Ok(tags)
}

/// Reads `Tag.N.Key` and `Tag.N.Value`.
pub(super) fn tags_of(at: &ParamScope<'_>) -> Result<BTreeMap<String, String>, Refusal> {
    let mut tags = BTreeMap::new();
    for tag in at.each("Tag") {
        let key = tag.required("Key")?;
        let value = tag.text("Value").unwrap_or_default();
        if key.starts_with("aws:") {
            return Err(Refusal::value(format!(
                "Tag keys starting with 'aws:' are reserved for internal use: {key}"
            )));
        }
        if key.chars().count() > 127 || value.chars().count() > 255 {
            return Err(Refusal::value(format!(
                "Tag key or value exceeds its maximum length: {key}"
            )));
        }
        if tags.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(Refusal::value(format!(
                "Duplicate tag key '{key}' specified."
            )));
        }
    }
    Ok(tags)
}

fn write(xml: &mut Xml, call: &Call<'_>, own: &LaunchTemplate) {
    xml.leaf("launchTemplateId", &own.id);
    xml.leaf("launchTemplateName", &own.name);
    xml.leaf("createTime", time(own.created));
    let account = call.account_id();
    xml.leaf("createdBy", format!("arn:aws:iam::{account}:user/mullion"));
    xml.leaf("defaultVersionNumber", 1);
    xml.leaf("latestVersionNumber", 1);
    write_tags(xml, &own.tags);
}

/// A time as EC2 writes it.
pub(crate) fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S.000Z").to_string()
}
