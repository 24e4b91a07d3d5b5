"""Calls to Linux: processes, process trees and namespaces."""
