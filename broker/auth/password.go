package auth

import (
	"crypto/md5"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"maps"
	"slices"
)

// Algorithm names how a password is hashed, in RabbitMQ's words. A hash is the base64 of a
// random salt of four bytes and the digest of salt and password.
type Algorithm string

const (
	SHA256 Algorithm = "rabbit_password_hashing_sha256"
	SHA512 Algorithm = "rabbit_password_hashing_sha512"
	MD5    Algorithm = "rabbit_password_hashing_md5" // RabbitMQ before 3.6: verified, never made

	DefaultAlgorithm = SHA256
)

// ErrBadAlgorithm is the answer to any other name.
var ErrBadAlgorithm = errors.New("unknown password hashing algorithm")

const saltBytes = 4

// nobody stands in for unknown users, so that they cost as much as known ones.
var nobody = User{Hash: base64.StdEncoding.EncodeToString(make([]byte, saltBytes+sha256.Size)), Algorithm: DefaultAlgorithm}

// HashPassword makes a salted hash by DefaultAlgorithm.
func HashPassword(password string) string {
	var salt [saltBytes]byte
	rand.Read(salt[:]) // never fails: it ends the program instead
	return base64.StdEncoding.EncodeToString(append(salt[:], DefaultAlgorithm.digest(salt[:], password)...))
}

// digest hashes salt and password, nil if the algorithm is unknown.
func (a Algorithm) digest(salt []byte, password string) []byte {
	salted := append(slices.Clip(salt), password...)
	switch a {
	case SHA256:
		d := sha256.Sum256(salted)
		return d[:]
	case SHA512:
		d := sha512.Sum512(salted)
		return d[:]
	case MD5:
		d := md5.Sum(salted)
		return d[:]
	}
	return nil
}

// verify compares in constant time. A user without a hash, or with one that no password can
// have, takes the time of a wrong password.
func (u *User) verify(password string) bool {
	raw, err := base64.StdEncoding.DecodeString(u.Hash)
	if err != nil || len(raw) <= saltBytes {
		raw = make([]byte, saltBytes+sha256.Size)
	}
	digest := u.Algorithm.digest(raw[:saltBytes], password)
	return subtle.ConstantTimeCompare(digest, raw[saltBytes:]) == 1
}

// Validate reports what keeps PutUser from taking the user: ErrNoName, ErrBadHash, ErrBadAlgorithm.
func (u *User) Validate() error {
	if u.Name == "" {
		return ErrNoName
	}
	if _, err := base64.StdEncoding.DecodeString(u.Hash); err != nil {
		return ErrBadHash
	}
	if u.Algorithm.digest(nil, "") == nil {
		return ErrBadAlgorithm
	}
	return nil
}

func (u *User) clone() *User {
	c := *u
	c.Tags = slices.Clone(u.Tags)
	c.Limits = maps.Clone(u.Limits)
	return &c
}
