"""Linux calls: processes, their trees and their end."""
