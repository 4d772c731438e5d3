//! Definitions and comments of source files.

use std::fmt;

use proc_macro2::{Ident, Spacing, TokenStream, TokenTree};
use syn::visit::{self, Visit};

/// Kinds of definitions that have rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    Type,
    Function,
    Module,
    Constant,
    Test,
}

/// A name that the code defines.
#[derive(Debug, Clone)]
pub(super) struct Definition {
    pub subject: Subject,
    pub name: String,
    /// Top folder of its crate, as in `crates/shm`.
    pub krate: String,
    pub place: String,
    /// Defined in a test, an example or a helper of tests.
    pub in_test: bool,
    /// A method that a trait of another crate names.
    pub imposed: bool,
    /// A constant of the type `Duration`.
    pub is_time: bool,
    /// First word of its doc comment.
    pub doc_start: Option<String>,
}

impl fmt::Display for Definition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?} {}", self.place, self.subject, self.name)
    }
}

/// A comment, one line of it.
#[derive(Debug, Clone)]
pub(super) struct Comment {
    pub krate: String,
    pub place: String,
    pub text: String,
    /// `///` or `//!`.
    pub doc: bool,
    pub in_test: bool,
}

/// The findings of any number of files.
#[derive(Default)]
pub(super) struct Scan {
    pub definitions: Vec<Definition>,
    pub comments: Vec<Comment>,
    /// Tokens outside tests and in tests, by crate.
    pub tokens: Vec<(String, bool, usize)>,
    /// Lines of code.
    pub lines: usize,
}

impl Scan {
    /// Adds the findings of one file.
    pub(super) fn add_file(&mut self, path: &str, text: &str) -> Result<(), String> {
        let krate = crate_folder(path);
        let in_test = is_test_path(path);
        let file =
            syn::parse_file(text).map_err(|e| format!("{path}:{}: {e}", e.span().start().line))?;
        let mut visitor = Visitor {
            path,
            krate: &krate,
            in_test,
            found: Vec::new(),
            test_lines: Vec::new(),
        };
        visitor.visit_file(&file);
        let (found, test_lines) = (visitor.found, visitor.test_lines);
        self.definitions.extend(found);
        self.add_comments(path, &krate, text, |line| {
            in_test || test_lines.iter().any(|range| range.contains(&line))
        });
        // Tokens instead of lines: the density of comments must not depend on formatting.
        let all: TokenStream = text.parse().map_err(|e| format!("{path}: {e}"))?;
        self.count_tokens(&krate, all, |line| {
            in_test || test_lines.iter().any(|range| range.contains(&line))
        });
        self.lines += text
            .lines()
            .filter(|line| !line.trim().is_empty() && !line.trim().starts_with("//"))
            .count();
        Ok(())
    }

    /// The part of one crate.
    pub(super) fn of_crate(&self, krate: &str) -> Self {
        Self {
            definitions: self
                .definitions
                .iter()
                .filter(|d| d.krate == krate)
                .cloned()
                .collect(),
            comments: self
                .comments
                .iter()
                .filter(|c| c.krate == krate)
                .cloned()
                .collect(),
            tokens: self
                .tokens
                .iter()
                .filter(|t| t.0 == krate)
                .cloned()
                .collect(),
            lines: 0,
        }
    }

    fn add_comments(
        &mut self,
        path: &str,
        krate: &str,
        text: &str,
        is_test: impl Fn(usize) -> bool,
    ) {
        for (index, line) in text.lines().enumerate() {
            let Some((doc, said)) = comment_of(line) else {
                continue;
            };
            let comment = Comment {
                krate: krate.to_owned(),
                place: format!("{path}:{}", index + 1),
                text: said.to_owned(),
                doc,
                in_test: is_test(index + 1),
            };
            self.comments.push(comment);
        }
    }

    fn count_tokens(
        &mut self,
        krate: &str,
        tokens: TokenStream,
        is_test: impl Fn(usize) -> bool + Copy,
    ) {
        let (mut product, mut test) = (0, 0);
        count(tokens, is_test, &mut product, &mut test);
        self.tokens.push((krate.to_owned(), false, product));
        self.tokens.push((krate.to_owned(), true, test));
    }
}

/// Two-character operators are one token, as a reader sees them; doc comments are none.
fn count(
    tokens: TokenStream,
    is_test: impl Fn(usize) -> bool + Copy,
    product: &mut usize,
    test: &mut usize,
) {
    let mut joint = false;
    let mut after_hash = false;
    for token in tokens {
        let line = token.span().start().line;
        let mut own = usize::from(!joint);
        joint = matches!(&token, TokenTree::Punct(punct) if punct.spacing() == Spacing::Joint);
        // `#![doc = …]` has a `!` between hash and group.
        let hash = matches!(&token, TokenTree::Punct(punct) if punct.as_char() == '#' || (after_hash && punct.as_char() == '!'));
        if let TokenTree::Group(group) = &token {
            // `#[doc = "…"]` is how a doc comment arrives here.
            let is_doc = after_hash
                && matches!(group.stream().into_iter().next(), Some(TokenTree::Ident(name)) if name == "doc");
            if is_doc {
                own = 0;
            } else {
                own += 1;
                count(group.stream(), is_test, product, test);
            }
        }
        after_hash = hash;
        // Tests are counted apart: they need fewer comments.
        *if is_test(line) {
            &mut *test
        } else {
            &mut *product
        } += own;
    }
}

/// The comment of a line: whether it is a doc comment, and its text.
fn comment_of(line: &str) -> Option<(bool, &str)> {
    // Doc comments first: their marks begin like a plain comment's.
    let trimmed = line.trim_start();
    for mark in ["///", "//!"] {
        if let Some(rest) = trimmed.strip_prefix(mark) {
            return Some((true, rest.trim()));
        }
    }
    if let Some(rest) = trimmed.strip_prefix("//") {
        return Some((false, rest.trim()));
    }
    let at = line.find(" // ")?;
    // An even number of quotes before it: the mark is not inside a string.
    line[..at]
        .matches('"')
        .count()
        .is_multiple_of(2)
        .then(|| (false, line[at + 4..].trim()))
}

fn crate_folder(path: &str) -> String {
    let mut parts = path.split('/');
    let top = parts.next().unwrap_or_default();
    match top {
        "crates" | "sdk" | "examples" => format!("{top}/{}", parts.next().unwrap_or_default()),
        _ => top.to_owned(),
    }
}

fn is_test_path(path: &str) -> bool {
    let test_folder = [
        "tests/",
        "examples/",
        "fuzz/",
        "crates/testkit/",
        "benches/",
    ];
    test_folder
        .iter()
        .any(|folder| path.starts_with(folder) || path.contains(&format!("/{folder}")))
        || path.ends_with("/tests.rs")
        || path.contains("/simulation/")
        || path.ends_with("/simulation.rs")
}

struct Visitor<'a> {
    path: &'a str,
    krate: &'a str,
    in_test: bool,
    found: Vec<Definition>,
    test_lines: Vec<std::ops::RangeInclusive<usize>>,
}

impl Visitor<'_> {
    fn define(&mut self, subject: Subject, name: &Ident, attrs: &[syn::Attribute], imposed: bool) {
        let line = name.span().start().line;
        self.found.push(Definition {
            subject,
            name: name.to_string().trim_start_matches("r#").to_owned(),
            krate: self.krate.to_owned(),
            place: format!("{}:{line}", self.path),
            in_test: self.in_test,
            imposed,
            is_time: false,
            doc_start: doc_start(attrs),
        });
    }

    fn constant(&mut self, name: &Ident, attrs: &[syn::Attribute], ty: &syn::Type) {
        self.define(Subject::Constant, name, attrs, false);
        if let Some(definition) = self.found.last_mut() {
            definition.is_time = is_duration(ty);
        }
    }

    fn function(&mut self, name: &Ident, attrs: &[syn::Attribute], imposed: bool) {
        let subject = if is_test(attrs) {
            Subject::Test
        } else {
            Subject::Function
        };
        self.define(subject, name, attrs, imposed);
    }
}

fn is_test(attrs: &[syn::Attribute]) -> bool {
    attrs.iter().any(|attr| {
        attr.path()
            .segments
            .last()
            .is_some_and(|segment| segment.ident == "test")
    })
}

fn is_duration(ty: &syn::Type) -> bool {
    matches!(ty, syn::Type::Path(path) if path.path.segments.last().is_some_and(|last| last.ident == "Duration"))
}

fn is_cfg_test(attrs: &[syn::Attribute]) -> bool {
    attrs.iter().any(|attr| match &attr.meta {
        syn::Meta::List(list) => {
            list.path.is_ident("cfg") && list.tokens.to_string().contains("test")
        }
        _ => false,
    })
}

fn doc_start(attrs: &[syn::Attribute]) -> Option<String> {
    let first = attrs.iter().find_map(|attr| match &attr.meta {
        syn::Meta::NameValue(pair) if pair.path.is_ident("doc") => match &pair.value {
            syn::Expr::Lit(syn::ExprLit {
                lit: syn::Lit::Str(text),
                ..
            }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    })?;
    let word = first.split_whitespace().next()?;
    Some(word.trim_matches(|c: char| !c.is_alphanumeric()).to_owned())
}

impl<'ast> Visit<'ast> for Visitor<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.define(Subject::Module, &item.ident, &item.attrs, false);
        let outside = self.in_test;
        if is_cfg_test(&item.attrs) {
            self.in_test = true;
            if let Some((brace, _)) = &item.content {
                self.test_lines
                    .push(brace.span.open().start().line..=brace.span.close().end().line);
            }
        }
        visit::visit_item_mod(self, item);
        self.in_test = outside;
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.define(Subject::Type, &item.ident, &item.attrs, false);
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.define(Subject::Type, &item.ident, &item.attrs, false);
        visit::visit_item_enum(self, item);
    }

    fn visit_item_union(&mut self, item: &'ast syn::ItemUnion) {
        self.define(Subject::Type, &item.ident, &item.attrs, false);
        visit::visit_item_union(self, item);
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.define(Subject::Type, &item.ident, &item.attrs, false);
        visit::visit_item_type(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.define(Subject::Type, &item.ident, &item.attrs, false);
        visit::visit_item_trait(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.function(&item.sig.ident, &item.attrs, false);
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig.ident, &item.attrs, false);
        visit::visit_item_fn(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        // Methods of a trait have the trait's names.
        let imposed = item.trait_.is_some();
        for part in &item.items {
            if let syn::ImplItem::Fn(method) = part {
                self.function(&method.sig.ident, &method.attrs, imposed);
            }
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.constant(&item.ident, &item.attrs, &item.ty);
        visit::visit_item_const(self, item);
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.constant(&item.ident, &item.attrs, &item.ty);
        visit::visit_impl_item_const(self, item);
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.constant(&item.ident, &item.attrs, &item.ty);
        visit::visit_item_static(self, item);
    }
}
