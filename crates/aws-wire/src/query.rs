//! The parameters of a request of the Query protocol: `Filter.1.Name=...&Filter.1.Value.1=...`.
//!
//! Invariant: a parameter that an action does not read is refused ([`Params::complete`]), so that no client believes that an ignored parameter
//! took effect.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, PoisonError},
};

use axum::http::StatusCode;

use crate::refusal::Refusal;

/// All parameters of a request.
#[derive(Debug)]
pub(crate) struct Params {
    all: BTreeMap<String, String>,
    read: Mutex<BTreeSet<String>>,
}

/// The parameters below a name.
#[derive(Clone, Debug)]
pub(crate) struct ParamScope<'a> {
    params: &'a Params,
    prefix: String,
}

impl Params {
    pub(crate) fn parse(form: &[u8]) -> Self {
        Self {
            all: form_urlencoded::parse(form).into_owned().collect(),
            read: Mutex::default(),
        }
    }

    pub(crate) fn root(&self) -> ParamScope<'_> {
        ParamScope {
            params: self,
            prefix: String::new(),
        }
    }

    /// Returns all parameters except `ClientToken` as one text. Requests that share a token must have the same text.
    pub(crate) fn fingerprint(&self) -> String {
        let all = self.all.iter();
        let all = all.filter(|(name, _)| *name != "ClientToken");
        all.map(|(name, value)| format!("{name}={value}\n"))
            .collect()
    }

    /// Checks that every parameter was read.
    ///
    /// # Errors
    /// `UnknownParameter` for a parameter that was not read; `DryRunOperation` if the request is a dry run.
    pub(crate) fn complete(&self) -> Result<(), Refusal> {
        let root = self.root();
        root.accept(&["Action", "Version"]);
        let dry = root.flag("DryRun")?.unwrap_or_default();
        let read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let unread = self.all.keys().find(|name| !read.contains(*name));
        if let Some(name) = unread {
            return Err(Refusal::new(
                "UnknownParameter",
                format!("The parameter {name} is not recognized"),
            ));
        }
        // EC2 answers a dry run with an error even if the request would have succeeded; clients look at the code.
        if dry {
            Err(Refusal::with(
                StatusCode::PRECONDITION_FAILED,
                "DryRunOperation",
                "Request would have succeeded, but DryRun flag is set.",
            ))
        } else {
            Ok(())
        }
    }
}

impl<'a> ParamScope<'a> {
    fn full(&self, name: &str) -> String {
        match self.prefix.as_str() {
            "" => name.to_owned(),
            prefix => format!("{prefix}.{name}"),
        }
    }

    /// Returns the parameters below a name.
    pub(crate) fn at(&self, name: &str) -> ParamScope<'a> {
        ParamScope {
            params: self.params,
            prefix: self.full(name),
        }
    }

    /// Returns whether the request has this parameter or any below it.
    pub(crate) fn is_given(&self) -> bool {
        let below = format!("{}.", self.prefix);
        let mut all = self.params.all.range(self.prefix.clone()..);
        all.next()
            .is_some_and(|(name, _)| *name == self.prefix || name.starts_with(&below))
    }

    /// Returns a value; an empty one counts as absent.
    pub(crate) fn text(&self, name: &str) -> Option<&'a str> {
        let full = self.full(name);
        let value = self.params.all.get(&full)?;
        self.note(full);
        Some(value.as_str()).filter(|value| !value.is_empty())
    }

    /// Returns a value.
    ///
    /// # Errors
    /// `MissingParameter` where there is none.
    pub(crate) fn required(&self, name: &str) -> Result<&'a str, Refusal> {
        self.text(name)
            .ok_or_else(|| Refusal::missing(&self.full(name)))
    }

    /// Returns a whole number.
    pub(crate) fn number(&self, name: &str) -> Result<Option<i64>, Refusal> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        text.parse().map(Some).map_err(|_| {
            Refusal::value(format!(
                "Value ({text}) for parameter {} is invalid. It must be a whole number.",
                self.full(name)
            ))
        })
    }

    /// Returns a number that may have a fraction.
    pub(crate) fn decimal(&self, name: &str) -> Result<Option<f64>, Refusal> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        let number = text.parse().ok().filter(|number: &f64| number.is_finite());
        number.map(Some).ok_or_else(|| {
            Refusal::value(format!(
                "Value ({text}) for parameter {} is invalid. It must be a number.",
                self.full(name)
            ))
        })
    }

    /// Returns a boolean.
    pub(crate) fn flag(&self, name: &str) -> Result<Option<bool>, Refusal> {
        match self.text(name) {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(other) => Err(Refusal::value(format!(
                "Invalid value '{other}' for the parameter {}. It must be true or false.",
                self.full(name)
            ))),
        }
    }

    /// Returns the values of a list of texts, `Name.1`, `Name.2` and so on.
    pub(crate) fn list(&self, name: &str) -> Vec<&'a str> {
        let list = self.at(name);
        let numbers = list.numbers();
        let texts = numbers.iter().filter_map(|number| list.text(number));
        texts.collect()
    }

    /// Returns the members of a list of structures.
    pub(crate) fn each(&self, name: &str) -> Vec<ParamScope<'a>> {
        let list = self.at(name);
        let numbers = list.numbers();
        numbers.iter().map(|number| list.at(number)).collect()
    }

    /// Marks parameters, and all below them, as read although they have no effect here.
    pub(crate) fn accept(&self, names: &[&str]) {
        for name in names {
            let own = self.full(name);
            let below = format!("{own}.");
            let all = self.params.all.keys();
            let names = all.filter(|name| **name == own || name.starts_with(&below));
            names.for_each(|name| self.note(name.clone()));
        }
    }

    /// Returns the numbers of a list's members in their order.
    fn numbers(&self) -> Vec<String> {
        let below = format!("{}.", self.prefix);
        let all = self.params.all.range(below.clone()..);
        let all = all.map_while(|(name, _)| name.strip_prefix(&below));
        let first = |name: &str| name.split('.').next()?.parse::<u32>().ok();
        // Sorted as numbers, because the parameters are sorted as texts, where `Value.10` comes before `Value.2`.
        let numbers: BTreeSet<_> = all.filter_map(first).collect();
        numbers.iter().map(ToString::to_string).collect()
    }

    fn note(&self, name: String) {
        let read = &self.params.read;
        read.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_structures_are_read_in_the_order_of_their_numbers() {
        let params = Params::parse(
            b"Filter.1.Name=a&Filter.1.Value.1=x&Filter.1.Value.10=z&Filter.1.Value.2=y%20y&Filter.2.Name=b",
        );
        let filters = params.root().each("Filter");
        assert_eq!(filters.len(), 2);
        assert_eq!(filters[0].list("Value"), ["x", "y y", "z"]);
        assert_eq!(filters[1].text("Name"), Some("b"));
        assert_eq!(filters[0].text("Name"), Some("a"));
        assert_eq!(params.complete(), Ok(()));
    }

    #[test]
    fn what_is_not_read_is_refused_by_its_name() {
        let params = Params::parse(b"Action=X&InstanceId.1=i-1&Hibernate=true");
        params.root().list("InstanceId");
        let refused = params.complete().unwrap_err();
        assert_eq!(refused.code, "UnknownParameter");
        assert_eq!(refused.message, "The parameter Hibernate is not recognized");
    }

    #[test]
    fn a_dry_run_ends_where_the_request_is_known_to_be_right() {
        let dry = Params::parse(b"Action=X&DryRun=true").complete();
        assert_eq!(dry.unwrap_err().code, "DryRunOperation");
        let wrong = Params::parse(b"Action=X&DryRun=maybe").complete();
        assert_eq!(wrong.unwrap_err().code, "InvalidParameterValue");
    }
}
