//! The types of what sites allocate: one function may make objects of several, on stacks that read the same.

use super::{StackTotals, View, add};
use crate::profile::objects::ObjectType;
use crate::profile::{Amount, Sample};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

/// What a site has of objects of one type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TypeShare {
    /// A stack of objects of that type, for [`View::object_type`].
    pub stack: usize,
    pub allocated: Amount,
    pub freed: Amount,
    pub live: Amount,
    pub at_peak: Amount,
}

/// What each site that mixes types has of each, by the site's first stack; those with most allocated bytes first.
pub(super) type Shares = FxHashMap<usize, Vec<TypeShare>>;

/// A list of types names so many.
const NAMED: usize = 3;

impl<'a> View<'a> {
    /// The type of the objects in all blocks of a site, if it is known.
    pub fn type_of_site(&self, site: &StackTotals) -> Option<&'a ObjectType> {
        self.object_type(site.stack).filter(|_| !site.mixes_types)
    }

    /// What a site has of each type, if its stacks are of several; what they have of no known type is no part.
    pub fn types_of_site(&self, site: &StackTotals) -> &[TypeShare] {
        if !site.mixes_types {
            return &[];
        }
        self.shares.get_or_init(|| self.share_out()).get(&site.stack).map_or(&[], Vec::as_slice)
    }

    /// What to call the type of a site in a table: of several, those with most bytes by name; empty if none is known.
    pub fn type_name_of_site(&self, site: &StackTotals) -> String {
        let shares = self.types_of_site(site);
        if shares.is_empty() {
            return self.type_of_site(site).map_or_else(String::new, ToString::to_string);
        }
        let mut names: Vec<String> = shares
            .iter()
            .take(NAMED)
            .filter_map(|share| self.object_type(share.stack))
            .map(ToString::to_string)
            .collect();
        if shares.len() > NAMED {
            names.push(format!("and {} more", shares.len() - NAMED));
        }
        let of_all = |amount: fn(&TypeShare) -> Amount| shares.iter().map(amount).fold(Amount::default(), Amount::plus);
        if of_all(|share| share.allocated) != site.allocated || of_all(|share| share.live) != site.live {
            names.push("and unknown".to_owned());
        }
        names.join(" | ")
    }

    fn share_out(&self) -> Shares {
        let sites = self.sites();
        let mut shares = Shares::default();
        for sample in self.samples.iter() {
            let site = self.site_of(sample.stack).and_then(|at| sites.get(at)).filter(|site| site.mixes_types);
            let of = self.object_type(sample.stack);
            let (Some(site), Some(_)) = (site, of) else { continue };
            let list = shares.entry(site.stack).or_default();
            let Sample { stack, allocated, freed, live, at_peak, .. } = sample;
            if let Some(share) = list.iter_mut().find(|share| self.object_type(share.stack) == of) {
                add(&mut share.allocated, allocated);
                add(&mut share.freed, freed);
                add(&mut share.live, live);
                add(&mut share.at_peak, at_peak);
            } else {
                list.push(TypeShare { stack, allocated, freed, live, at_peak });
            }
        }
        let name = |share: &TypeShare| self.object_type(share.stack).map(|of| of.name.clone());
        for list in shares.values_mut() {
            list.sort_by_cached_key(|share| (Reverse(share.allocated.bytes), name(share)));
        }
        shares
    }
}
